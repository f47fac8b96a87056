// The training of a Shard as a checkpoint: what its tensors and numbers are called. The names are those of
// python/bottomless/_shard_checkpoint.py, so that C++ and Python load what the other has saved; the bytes move in
// shard_checkpoint.h and checkpoint_reader.h.
// Thread-safety: one thread at a time. All ranks call these, in the same order.
// Errors that are returned are those of all ranks, in the same words; what throws has left them at different places.
#pragma once
#include <ATen/core/Tensor.h>
#include <bottomless/result.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "torch/checkpoint/shard_checkpoint.h"
#include "torch/shard/sharding.h"

namespace bottomless {

struct ShardedTraining {
  Sharding& sharding;
  const torch::nn::Module& model;
  torch::optim::Optimizer& optimizer;
  const std::vector<std::string>& names;
  size_t of_model;  // the first so many; the rest only the optimizer knows
  const std::vector<at::Tensor>& parameters;
  const std::vector<at::Tensor>& slices;
  const std::vector<std::vector<size_t>>& groups;  // of the optimizer, with all their parameters
};

// `extra`: JSON. `number`: see ShardedSave.
Result<std::unique_ptr<ShardedSave>> begin_save(const ShardedTraining& training,
                                                const std::filesystem::path& directory,
                                                uint64_t step, uint64_t number,
                                                const std::string& extra);

struct LoadedTraining {
  uint64_t step = 0;
  std::string extra;
};
Result<LoadedTraining> load_training(const ShardedTraining& training,
                                     const std::filesystem::path& directory);

}  // namespace bottomless
