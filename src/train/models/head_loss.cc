#include "train/models/head_loss.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace bottomless::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// So many rows at a time that the products are large enough to be quick, and the logits small enough to be no burden.
int64_t rows_at_once(int64_t vocabulary) {
  constexpr int64_t kLogits = int64_t{16} << 20, kLeast = 128;
  return std::max(kLogits / vocabulary, kLeast);
}

struct Gradients {
  Tensor hidden;  // undefined: not wanted
  Tensor weight;
};

// Adds to the gradients what follows from rows [begin, begin + logits.size(0)); returns the sum of their losses.
Tensor loss_of_rows(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double scale,
                    int64_t begin, Gradients& gradients) {
  const Tensor columns = targets.unsqueeze(1);
  Tensor scores = at::log_softmax(at::mm(hidden, weight.t()), -1, at::kFloat);
  const Tensor loss = scores.gather(1, columns).sum().neg_();
  if (!gradients.hidden.defined() && !gradients.weight.defined()) return loss;
  // The gradient by the logits: the probabilities, less one at the target.
  scores.exp_();
  scores.scatter_add_(1, columns, at::full_like(columns, -1, at::TensorOptions(at::kFloat)));
  if (gradients.hidden.defined()) {
    Tensor rows = gradients.hidden.narrow(0, begin, hidden.size(0));
    at::mm_out(rows, scores.to(weight.scalar_type()), weight);
    rows.mul_(scale);
  }
  if (gradients.weight.defined()) {
    const Tensor scaled = at::mul(hidden.to(at::kFloat), scale);
    gradients.weight.addmm_(scores.t(), scaled, /*beta=*/begin == 0 ? 0 : 1);
  }
  return loss;
}

struct HeadLoss : torch::autograd::Function<HeadLoss> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, double scale, bool wanted) {
    const Tensor kept = at::nonzero(targets != kIgnoredTarget).flatten();
    const bool all = kept.size(0) == targets.size(0);
    const Tensor rows = all ? hidden : hidden.index_select(0, kept);
    const Tensor wanted_targets = all ? targets : targets.index_select(0, kept);
    Gradients gradients;
    if (wanted && hidden.requires_grad()) gradients.hidden = at::empty_like(rows);
    if (wanted && weight.requires_grad()) {
      gradients.weight = at::empty_like(weight, at::TensorOptions(at::kFloat));
      if (rows.size(0) == 0) gradients.weight.zero_();
    }
    Tensor loss = at::zeros({});
    const int64_t most = rows_at_once(weight.size(0));
    for (int64_t begin = 0; begin < rows.size(0); begin += most) {
      const int64_t count = std::min(most, rows.size(0) - begin);
      loss += loss_of_rows(rows.narrow(0, begin, count), weight,
                           wanted_targets.narrow(0, begin, count), scale, begin, gradients);
    }
    if (gradients.hidden.defined() && !all)
      gradients.hidden = at::zeros_like(hidden).index_copy_(0, kept, gradients.hidden);
    if (gradients.weight.defined()) gradients.weight = gradients.weight.to(weight.scalar_type());
    context->saved_data["hidden"] = gradients.hidden;
    context->saved_data["weight"] = gradients.weight;
    return loss.mul_(scale);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto scaled = [&](const char* name) {
      const Tensor saved = context->saved_data[name].toTensor();
      // The loss is what backward() begins at, as a rule: then this is one, and the pass is saved.
      const double factor = gradients[0].item<double>();
      return !saved.defined() || factor == 1 ? saved : saved * factor;
    };
    return {scaled("hidden"), scaled("weight"), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

Tensor head_loss(const Tensor& hidden, const Tensor& weight, const Tensor& targets, double scale) {
  return HeadLoss::apply(hidden.reshape({-1, hidden.size(-1)}), weight, targets.flatten(), scale,
                         at::GradMode::is_enabled());
}

}  // namespace bottomless::train
