// Element-wise work on tensors too large to be in memory together, cut into tiles. Cuts are
// placed so that every element goes through the same code path, vector body or scalar tail, as
// in the uncut run: the bits stay the same.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <vector>

#include "torch/intercept/operator_info.h"

namespace bottomless {

// Runs the operator in tiles if it is one that may be cut and its tensors are large for the limit;
// false if it was not.
bool run_in_tiles(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
                  torch::jit::Stack* stack);

// True when everything the operator touches takes so little of the limit that nothing need be cut
// or split.
bool fits_as_a_whole(const OperatorInfo& info, const torch::jit::Stack& stack);

// Where to cut [0, elements): ascending, ending with `elements`. ATen divides the uncut range
// evenly over `threads` and finishes each part with a scalar tail; a tile must have its tails where
// a part has them and nowhere else. `most` is the length of a tile aimed at.
std::vector<int64_t> tile_ends(int64_t elements, int64_t threads, int64_t most);

}  // namespace bottomless
