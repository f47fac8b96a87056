// The sum of a gradient's squares: worked out piece by piece, whatever the limit, and kept until the gradient changes. So a
// norm that was taken while the gradient was in memory costs nothing when it is asked for again.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/intercept/operator_info.h"

namespace bottomless {

// Elements whose squares are added up before they are added to the rest. Part of what the bits are.
inline constexpr int64_t kSquaresAtOnce = int64_t{1} << 20;

// For bottomless::sum_of_squares; false if the tensor is not managed.
bool run_square_sum(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    const OperatorInfo& info, torch::jit::Stack* stack);

}  // namespace bottomless
