// Reads a whole checkpoint and compares it with its manifest.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file_reader.h"

namespace bottomless {

// Opens a file of a checkpoint; Code::corrupt if its header tells of other tensors than the manifest.
Result<TensorFileReader> open_shard(Files& files, const std::filesystem::path& directory,
                                    const FileEntry& entry);

enum class Nonfinite { ignore, count };

struct Verified {
  struct Found {
    std::string tensor;
    uint64_t elements;  // that are infinite or not a number
  };
  uint64_t tensors = 0;
  Bytes bytes = 0;
  std::vector<Found> nonfinite;  // such values are no damage: training may have made them
};

// Every byte of every tensor; Code::corrupt names the first that is not what was written.
Result<Verified> verify(Files& files, const std::filesystem::path& directory,
                        const Manifest& manifest, Nonfinite nonfinite = Nonfinite::ignore);

}  // namespace bottomless
