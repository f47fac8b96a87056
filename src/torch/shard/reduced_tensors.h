// Tensors as a Reduction knows them, and what it asks of torch.
// Thread-safety: free functions; the hooks may be called from any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "ranks/reduction.h"

namespace bottomless {

ReducedTensor as_reduced(at::Tensor tensor, Element element);
// Undefined where there is none.
std::vector<at::Tensor> tensors_of(const std::vector<ReducedTensor>& reduced);

// Types and this rank's shares are those of the parameters, in their order. Sums are managed.
ReductionHooks reduction_of_tensors(std::vector<at::ScalarType> types, std::vector<Share> shares,
                                    int ranks);

}  // namespace bottomless
