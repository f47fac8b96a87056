#include "train/models/experts.h"

#include <ATen/ATen.h>

#include "base/check.h"

namespace bottomless::train {

using torch::Tensor;

GatedMlp::GatedMlp(const Scope& scope, const ModelConfig& config, const Names& names)
    : activation_(config.activation) {
  const LinearOptions in{config.width, config.inner_width, config.mlp_bias};
  const LinearOptions out{config.inner_width, config.width, config.mlp_bias, Role::residual_weight};
  gate_ = add<Linear>(*this, scope, names.gate, in);
  up_ = add<Linear>(*this, scope, names.up, in);
  down_ = add<Linear>(*this, scope, names.down, out);
}

Tensor GatedMlp::forward(const Tensor& x) const {
  return down_->forward(activate(gate_->forward(x), activation_) * up_->forward(x));
}

Experts::Experts(const Scope& scope, const ModelConfig& config)
    : per_token_(config.experts_per_token),
      jitter_(config.router_jitter),
      gate_(add<Linear>(*this, scope, "gate", LinearOptions{config.width, config.experts})) {
  const auto experts = add<Group>(*this, scope, "experts");
  for (int64_t index = 0; index < config.experts; ++index) {
    experts_.push_back(add<GatedMlp>(*experts, scope / "experts", std::to_string(index), config,
                                     GatedMlp::Names{"w1", "w3", "w2"}));
  }
}

Tensor Experts::forward(const Tensor& input) const {
  Tensor x = input.reshape({-1, input.size(-1)});
  if (jitter_ > 0 && is_training()) x = x * at::empty_like(x).uniform_(1 - jitter_, 1 + jitter_);
  const Tensor logits = gate_->forward(x);
  if (router_logits != nullptr) router_logits->push_back(logits);
  const auto [best, chosen] = at::topk(at::softmax(logits, -1, at::kFloat), per_token_, /*dim=*/-1);
  const Tensor shares = (best / best.sum(-1, /*keepdim=*/true)).flatten();

  // The pairs of a token and an expert, in the order of the experts: each has one stretch of them.
  const auto count = static_cast<int64_t>(experts_.size());
  const Tensor pairs = at::argsort(chosen.flatten(), /*stable=*/true, /*dim=*/0);
  const Tensor tokens = at::floor_divide(pairs, per_token_);
  const Tensor lengths = at::bincount(chosen.flatten(), {}, count);
  Tensor sum = at::zeros_like(x);
  for (int64_t index = 0, begin = 0; index < count; ++index) {
    const int64_t length = lengths[index].item<int64_t>();
    if (length == 0) continue;
    const Tensor rows = tokens.narrow(0, begin, length);
    const Tensor weights = shares.index_select(0, pairs.narrow(0, begin, length));
    const Tensor made = experts_[static_cast<size_t>(index)]->forward(x.index_select(0, rows)) *
                        weights.unsqueeze(-1);
    sum = sum.index_add(0, rows, made.to(sum.scalar_type()));
    begin += length;
  }
  return sum.view(input.sizes());
}

Tensor load_balancing_loss(const std::vector<Tensor>& router_logits, int64_t per_token) {
  BOTTOMLESS_CHECK(!router_logits.empty(), "a layer of experts has run");
  const int64_t experts = router_logits.front().size(-1);
  Tensor chosen_sum = at::zeros({experts}), probability_sum = at::zeros({experts});
  int64_t rows = 0;
  for (const Tensor& logits : router_logits) {
    const Tensor probabilities = at::softmax(logits, -1);
    const Tensor chosen = std::get<1>(at::topk(probabilities, per_token, /*dim=*/-1));
    chosen_sum = chosen_sum + at::bincount(chosen.flatten(), {}, experts);
    probability_sum = probability_sum + probabilities.to(at::kFloat).sum(0);
    rows += logits.size(0);
  }
  const auto total = static_cast<double>(rows);
  return (chosen_sum / total * (probability_sum / total)).sum() * experts;
}

}  // namespace bottomless::train
