// What a checkpoint is for, in small: tensors of a few ranks that are saved and come back.
// Thread-safety: free functions without state, and values.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/commit.h"
#include "checkpoint/files.h"
#include "support/random.h"

namespace bottomless {

struct StateTensor {
  TensorSpec spec;
  std::vector<std::byte> bytes;
  bool operator==(const StateTensor&) const = default;
};

struct State {
  uint64_t step = 0;
  std::map<std::string, StateTensor> tensors;
  bool operator==(const State&) const = default;
};

// Tensors of all types and of odd sizes, empty ones among them; no finite value is promised.
State random_state(uint64_t step, size_t tensors, uint64_t most_elements, Random& random);

TensorSpec spec_of(std::string name, Dtype dtype, std::vector<uint64_t> shape);

// The share of one rank: every `ranks`-th tensor, in pieces of up to `piece` bytes. The entry went through JSON.
Result<FileEntry> save_rank(Files& files, const std::filesystem::path& directory,
                            const State& state, uint32_t rank, uint32_t ranks, size_t piece = 700);
Result<Removed> save(Files& files, const std::filesystem::path& directory, const State& state,
                     uint32_t ranks = 3, Keep keep = Keep::last);

// All of it, verified, and read once more.
Result<State> load(Files& files, const std::filesystem::path& directory,
                   std::string_view name = kManifestName);

}  // namespace bottomless
