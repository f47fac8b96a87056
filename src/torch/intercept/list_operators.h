// `_fused_*` operators take all parameters of a model at once; pinned as a whole they would need
// it all in memory. They are run element by element of their lists instead, and a large element in
// tiles: same operator on same values.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/intercept/operator_info.h"

namespace bottomless {

// True when the operator was run here; false when it is to be run whole (its lists are small, or of
// a kind not known).
bool run_list_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                       const OperatorInfo& info, torch::jit::Stack* stack);

}  // namespace bottomless
