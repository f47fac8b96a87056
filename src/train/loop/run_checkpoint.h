// The checkpoint of a run on one rank: tensors by name and a JSON object, in the format of src/checkpoint, so that it is
// the old one or the new one whatever happens, and every tool for checkpoints reads it.
// Thread-safety: free functions; one save at a time in a directory.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/dtype.h"
#include "train/models/named_tensor.h"

namespace bottomless::train {

// Streams the tensors, which are row-major, to the disk, a piece at a time.
Result<void> write_run(const std::filesystem::path& directory, uint64_t step,
                       const NamedTensors& tensors, const nlohmann::json& extra);

// What write_run() was given, but for the content of the tensors. Code::not_found: there is no checkpoint.
struct SavedRun {
  uint64_t step = 0;
  std::vector<TensorSpec> tensors;
  nlohmann::json extra;
};
Result<SavedRun> read_run(const std::filesystem::path& directory);

// Fills the tensors, which must have the shapes and types of those that were saved; compares checksums.
Result<void> read_run_tensors(const std::filesystem::path& directory, const NamedTensors& tensors);

}  // namespace bottomless::train
