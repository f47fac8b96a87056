// The checkpoint of a directory, to be read into tensors in any parts. Needs neither ranks nor a limit.
// Thread-safety: one thread at a time.
// Lifetime: files stay open once something was read from them. Errors are thrown as torch's.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file_reader.h"
#include "ranks/layout.h"

namespace bottomless {

class CheckpointReader {
 public:
  explicit CheckpointReader(std::filesystem::path directory);

  const Manifest& manifest() const { return manifest_; }
  const TensorEntry& find(const std::string& name) const;  // throws where there is none

  // Bytes [share.begin, share.end) of the tensor as they lie in memory with these strides; `into` is dense.
  void read(const std::string& name, at::IntArrayRef strides, Share share, const at::Tensor& into);
  // All of it, row-major, and compared with its checksum.
  void read_whole(const std::string& name, const at::Tensor& into);

 private:
  struct Place {
    size_t file;
    size_t tensor;
  };
  const TensorFileReader& reader_of(const Place& place);
  const Place& place_of(const std::string& name) const;
  uint64_t read_range(const std::string& name, Bytes offset, const at::Tensor& into);

  const std::filesystem::path directory_;
  const std::unique_ptr<Files> files_;
  Manifest manifest_;
  std::vector<std::optional<TensorFileReader>> readers_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace bottomless
