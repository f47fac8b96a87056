// The tensors of all safetensors files of a model directory, by name.
// Thread-safety: any thread may read, also at the same time.
// Lifetime: files stay open as long as it lives.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/tensor_file_reader.h"

namespace bottomless::train {

class TensorDirectory {
 public:
  struct Place {
    const TensorFileReader* file;
    const PlacedTensor* tensor;
  };

  // The files that the index names, or all that there are.
  static Result<TensorDirectory> open(Files& files, const std::filesystem::path& directory);

  const Place* find(const std::string& name) const;  // null: there is none
  const std::unordered_map<std::string, Place>& tensors() const { return places_; }
  std::string any_name() const;  // of one whose file is the first; empty: there is none

 private:
  std::vector<std::unique_ptr<TensorFileReader>> readers_;
  std::unordered_map<std::string, Place> places_;
};

}  // namespace bottomless::train
