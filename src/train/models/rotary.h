// Rotary positions: each pair of a head's numbers is turned by an angle that grows with the token's position.
// Thread-safety: as Positions.
#pragma once
#include <torch/types.h>

#include <cstdint>

#include "train/models/attention.h"
#include "train/models/config.h"

namespace bottomless::train {

// The angle by which one step turns each pair, [head width / 2], for sequences of `length` tokens.
torch::Tensor rotary_frequencies(const ModelConfig& config, int64_t length);

// x: [batch, time, heads, head width]
torch::Tensor rotate(const torch::Tensor& x, const Positions& positions, const ModelConfig& config);

}  // namespace bottomless::train
