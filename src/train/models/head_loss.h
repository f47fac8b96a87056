// The head and the cross-entropy behind it, over a few rows at a time: [rows, vocabulary] logits of all tokens never exist
// at once, forward or back.
// Thread-safety: free function without state.
#pragma once
#include <torch/types.h>

#include <cstdint>

namespace bottomless::train {

inline constexpr int64_t kIgnoredTarget = -100;  // as torch's

// scale times the sum, over all targets that are not ignored, of the cross-entropy between softmax(weight x) and the
// target, in float32. hidden: [..., width]; targets: [...] int64; weight: [vocabulary, width]. Rows with an ignored target
// cost nothing. The gradients are worked out on the way forward, so give the scale here (one divided by the number of
// targets of the whole batch) and not to the sum. They can be had once, not differentiated again.
torch::Tensor head_loss(const torch::Tensor& hidden, const torch::Tensor& weight,
                        const torch::Tensor& targets, double scale);

}  // namespace bottomless::train
