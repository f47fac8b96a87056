// Gradients of several micro-batches at once: all of them pass a layer before the next layer's turn, forward and backward.
// A layer's weights are needed once on the way up and once on the way down, however many micro-batches there are, so a
// step with small batches moves no more bytes than one with a large batch.
// Thread-safety: one thread at a time.
#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>

#include "train/models/head_loss.h"
#include "train/models/model.h"

namespace bottomless::train {

struct MicroBatch {
  torch::Tensor tokens;   // [rows, length], int64
  torch::Tensor targets;  // likewise: what follows each token, or kIgnoredTarget
  Positions positions;
};

// What others do between the passes.
struct BetweenPasses {
  // Before every backward pass: whether what it adds to the gradients of its parameters is the last of this step.
  std::function<void(bool final)> before_backward = [](bool) {};
  // All micro-batches have passed this layer on their way back: its gradients are final.
  std::function<void(int64_t layer)> layer_done = [](int64_t) {};
};

// Adds the gradients of scale * (sum of the losses of all targets) to those of the parameters; returns that.
double accumulate_gradients(Model& model, std::span<const MicroBatch> batches, double scale,
                            const BetweenPasses& between = {});

// The same without gradients.
double sum_losses(Model& model, std::span<const MicroBatch> batches, double scale);

}  // namespace bottomless::train
