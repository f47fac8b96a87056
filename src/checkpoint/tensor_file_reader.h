// Reads a safetensors file piece by piece: its header when it is opened, then any range of any tensor.
// Thread-safety: any thread may read, also at the same time.
// Lifetime: the file stays open as long as the reader lives, also if its name is removed meanwhile.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"

namespace bottomless {

class TensorFileReader {
 public:
  static Result<TensorFileReader> open(Files& files, const std::filesystem::path& path);

  const std::vector<PlacedTensor>& tensors() const { return layout_.tensors; }
  const Metadata& metadata() const { return layout_.metadata; }
  Bytes file_bytes() const { return layout_.file_bytes; }
  const std::filesystem::path& path() const { return path_; }

  // The tensor of that name, or null.
  const PlacedTensor* find(std::string_view name) const;

  // Bytes [offset, offset + into.size()) of one of tensors(). Code::corrupt if the file ends before.
  Result<void> read(const PlacedTensor& tensor, Bytes offset, std::span<std::byte> into) const;

 private:
  TensorFileReader(std::unique_ptr<File> file, std::filesystem::path path, TensorLayout layout);

  std::unique_ptr<File> file_;
  std::filesystem::path path_;
  TensorLayout layout_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace bottomless
