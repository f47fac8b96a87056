// Collectives of torch.distributed return before they are done: other threads still read and
// write their tensors. Their pins are kept until the work has completed, so that nothing leaves
// that is about to come back. Functional collectives call these.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

#include "torch/intercept/operator_info.h"

namespace bottomless {

void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    const OperatorInfo& info, torch::jit::Stack* stack);

}  // namespace bottomless
