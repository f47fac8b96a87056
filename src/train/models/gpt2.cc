#include "train/models/gpt2.h"

#include <ATen/ATen.h>

#include <cmath>

namespace bottomless::train {

using torch::Tensor;

Gpt2Layer::Gpt2Layer(const Scope& scope, const ModelConfig& config, int64_t index)
    : index_(index),
      heads_(config.heads),
      residual_dropout_(config.residual_dropout),
      activation_(config.activation),
      attention_{.scale = 1, .dropout = config.attention_dropout} {
  if (config.scaled_by_head_width)
    attention_.scale /= std::sqrt(static_cast<double>(config.head_width));
  if (config.scaled_by_layer) attention_.scale /= static_cast<double>(index + 1);
  const auto linear = [](int64_t inputs, int64_t outputs, Role role) {
    return LinearOptions{inputs, outputs, true, role, LinearOptions::Order::inputs_first};
  };
  const int64_t width = config.width, inner = config.inner_width;
  ln_1_ = add<LayerNorm>(*this, scope, "ln_1", width, config.norm_epsilon);
  const auto attn = add<Group>(*this, scope, "attn");
  c_attn_ = add<Linear>(*attn, scope / "attn", "c_attn", linear(width, 3 * width, Role::weight));
  attention_out_ =
      add<Linear>(*attn, scope / "attn", "c_proj", linear(width, width, Role::residual_weight));
  ln_2_ = add<LayerNorm>(*this, scope, "ln_2", width, config.norm_epsilon);
  const auto mlp = add<Group>(*this, scope, "mlp");
  c_fc_ = add<Linear>(*mlp, scope / "mlp", "c_fc", linear(width, inner, Role::weight));
  mlp_out_ =
      add<Linear>(*mlp, scope / "mlp", "c_proj", linear(inner, width, Role::residual_weight));
}

Tensor Gpt2Layer::dropped(const Tensor& x) const {
  return at::dropout(x, residual_dropout_, is_training());
}

Tensor Gpt2Layer::attention(const Tensor& x, const Positions& positions,
                            KeyValueCache* cache) const {
  const int64_t batch = x.size(0), time = x.size(1), head_width = x.size(2) / heads_;
  const auto parts = c_attn_->forward(x).view({batch, time, 3, heads_, head_width}).unbind(2);
  const Tensor query = parts[0].transpose(1, 2);
  KeyValueCache::Seen seen{parts[1].transpose(1, 2), parts[2].transpose(1, 2)};
  if (cache != nullptr) seen = cache->add(index_, seen.keys, seen.values);
  Attention attention = attention_;
  if (!is_training()) attention.dropout = 0;
  return attention_out_->forward(attend(query, seen.keys, seen.values, positions, attention));
}

Tensor Gpt2Layer::forward(const Tensor& hidden, const Positions& positions,
                          KeyValueCache* cache) const {
  const Tensor seen = hidden + dropped(attention(ln_1_->forward(hidden), positions, cache));
  const Tensor inner = activate(c_fc_->forward(ln_2_->forward(seen)), activation_);
  return seen + dropped(mlp_out_->forward(inner));
}

Gpt2::Gpt2(const ModelConfig& config, const Scope& root) : Model(config) {
  const Scope scope = root / "transformer";
  const auto transformer = add<Group>(*this, root, "transformer");
  wte_ = add<Embedding>(*transformer, scope, "wte", config.vocabulary, config.width);
  wpe_ = add<Embedding>(*transformer, scope, "wpe", config.positions, config.width);
  const auto h = add<Group>(*transformer, scope, "h");
  for (int64_t index = 0; index < config.layers; ++index)
    h_.push_back(add<Gpt2Layer>(*h, scope / "h", std::to_string(index), config, index));
  ln_f_ = add<LayerNorm>(*transformer, scope, "ln_f", config.width, config.norm_epsilon);
  if (!config.tied)
    lm_head_ = add<Embedding>(*this, root, "lm_head", config.vocabulary, config.width);
}

Tensor Gpt2::embed(const Tensor& tokens, const Positions& positions) {
  const Tensor hidden = wte_->forward(tokens) + wpe_->forward(positions.ids());
  return at::dropout(hidden, config().embedding_dropout, is_training());
}

Tensor Gpt2::layer(int64_t index, const Tensor& hidden, const Positions& positions,
                   KeyValueCache* cache) {
  return h_.at(static_cast<size_t>(index))->forward(hidden, positions, cache);
}

Tensor Gpt2::final_norm(const Tensor& hidden) { return ln_f_->forward(hidden); }

const Tensor& Gpt2::head_weight() const { return (lm_head_ ? lm_head_ : wte_)->weight(); }

}  // namespace bottomless::train
