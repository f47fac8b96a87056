// What is inside a Shard, for those who keep its shares in files of their own.
// Thread-safety: that of the Shard.
// Lifetime: the Shard outlives it.
#pragma once
#include <ATen/core/Tensor.h>
#include <bottomless/shard.h>

#include <vector>

#include "torch/shard/sharding.h"

namespace bottomless {

class ShardInside {
 public:
  explicit ShardInside(Shard& shard) : shard_(shard) {}

  Sharding& sharding() const;
  // Whole ones, and in the same order what this rank's optimizer has instead: without elements where it has nothing.
  const std::vector<at::Tensor>& parameters() const;
  const std::vector<at::Tensor>& slices() const;
  // When the Shard ends, nobody wants the model any more.
  void forget_model();

 private:
  Shard& shard_;
};

}  // namespace bottomless
