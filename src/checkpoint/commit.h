// How a checkpoint that several processes write replaces the one before it, atomically: whatever is killed, at any moment,
// the directory holds the old checkpoint or the new one, complete. docs/checkpoints.md gives the order and the reasons.
//
//   every rank:  create_shard(...), its pieces, entry = finish(); to_json(entry) goes to rank 0
//   rank 0:      commit(files, directory, {step, entries of all ranks, extra})
//
// A directory holds one checkpoint of one run. A rank may begin to write the next one before the last is committed if its
// step is greater.
// Thread-safety: one commit or removal at a time in a directory; shards are independent.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_file_writer.h"

namespace bottomless {

// "shard-STEP-RANK-RANDOM.safetensors", another one each time: no file of a checkpoint is ever written again.
std::string new_shard_name(uint64_t step, uint32_t rank);

// The step in such a name; nothing if it is none, and therefore not ours to remove.
std::optional<uint64_t> step_of_shard(std::string_view name);

// This rank's file, under a new name. Makes the directory if its parent is there.
Result<std::unique_ptr<TensorFileWriter>> create_shard(Files& files,
                                                       const std::filesystem::path& directory,
                                                       uint64_t step, uint32_t rank,
                                                       std::vector<TensorSpec> tensors);

struct Removed {
  std::vector<std::string> files;
  std::optional<Error> failed;  // the first that could not be removed; the next commit tries again
};

enum class Keep { last, last_two };  // checkpoints of a directory

// Makes the manifest that of the directory, when all its files are there. Where two are kept, the one that it replaces stays, named
// by kPreviousManifestName, and while it is written the directory holds three. If it fails, the directory holds the old
// checkpoint, or (if the very last step failed, or the power did) perhaps the new one. When it returns, the new one
// survives a power cut; then shards and drafts of a manifest that nothing names are removed, except those of later steps.
Result<Removed> commit(Files& files, const std::filesystem::path& directory,
                       const Manifest& manifest, Keep keep = Keep::last);

// What interrupted saves have left, of every step. For the start of a run, while nobody saves. Does nothing, and says why,
// if there is a manifest that cannot be read.
Result<Removed> remove_leftovers(Files& files, const std::filesystem::path& directory);

}  // namespace bottomless
