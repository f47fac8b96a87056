#include "train/loop/layer_major.h"

#include <torch/torch.h>

#include <utility>
#include <vector>

namespace bottomless::train {
namespace {

struct Passage {  // of one micro-batch through one layer; cut off from the layer before
  torch::Tensor in;
  torch::Tensor out;
};

// What nothing below it is trained for needs no gradient.
torch::Tensor cut_off(const torch::Tensor& value) {
  return value.detach().requires_grad_(value.requires_grad());
}

void backward(const torch::Tensor& out, const torch::Tensor& gradient) {
  if (out.requires_grad()) out.backward(gradient);
}

}  // namespace

double accumulate_gradients(Model& model, std::span<const MicroBatch> batches, double scale,
                            const BetweenPasses& between) {
  const auto layers = static_cast<size_t>(model.layers());
  const size_t count = batches.size();
  std::vector<torch::Tensor> embedded(count), hidden(count), gradients(count);
  std::vector<std::vector<Passage>> passages(layers, std::vector<Passage>(count));
  for (size_t b = 0; b < count; ++b)
    hidden[b] = embedded[b] = model.embed(batches[b].tokens, batches[b].positions);
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t b = 0; b < count; ++b) {
      Passage& passage = passages[layer][b];
      passage.in = cut_off(hidden[b]);
      hidden[b] = passage.out =
          model.layer(static_cast<int64_t>(layer), passage.in, batches[b].positions);
    }
  }

  double sum = 0;
  for (size_t b = 0; b < count; ++b) {
    const torch::Tensor top = cut_off(std::exchange(hidden[b], {}));
    const torch::Tensor loss = model.loss(top, batches[b].targets, scale);
    sum += loss.item<double>();
    between.before_backward(b + 1 == count && !model.config().tied);
    if (loss.requires_grad()) loss.backward();
    gradients[b] = top.grad();
  }
  for (size_t layer = layers; layer-- > 0;) {
    for (size_t b = 0; b < count; ++b) {
      between.before_backward(b + 1 == count);
      const Passage passage = std::exchange(passages[layer][b], {});
      backward(passage.out, std::exchange(gradients[b], {}));
      gradients[b] = passage.in.grad();
    }
    between.layer_done(static_cast<int64_t>(layer));
  }
  for (size_t b = 0; b < count; ++b) {
    between.before_backward(b + 1 == count);
    backward(embedded[b], std::exchange(gradients[b], {}));
  }
  return sum;
}

double sum_losses(Model& model, std::span<const MicroBatch> batches, double scale) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> hidden;
  for (const MicroBatch& batch : batches)
    hidden.push_back(model.embed(batch.tokens, batch.positions));
  for (int64_t layer = 0; layer < model.layers(); ++layer) {
    for (size_t b = 0; b < batches.size(); ++b)
      hidden[b] = model.layer(layer, hidden[b], batches[b].positions);
  }
  double sum = 0;
  for (size_t b = 0; b < batches.size(); ++b)
    sum += model.loss(hidden[b], batches[b].targets, scale).item<double>();
  return sum;
}

}  // namespace bottomless::train
