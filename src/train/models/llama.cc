#include "train/models/llama.h"

#include <ATen/ATen.h>

#include <cmath>

#include "train/models/rotary.h"

namespace bottomless::train {

using torch::Tensor;

LlamaLayer::LlamaLayer(const Scope& scope, const ModelConfig& config, int64_t index)
    : config_(config),
      index_(index),
      attention_{.scale = 1 / std::sqrt(static_cast<double>(config.head_width)),
                 .dropout = config.attention_dropout} {
  if (config.window && config.windowed[static_cast<size_t>(index)])
    attention_.window = config.window;
  const int64_t query = config.heads * config.head_width;
  const int64_t key = config.key_value_heads * config.head_width;
  const auto into_heads = [&](int64_t outputs) {
    return LinearOptions{config.width, outputs, config.query_key_value_bias};
  };
  input_layernorm_ =
      add<RmsNorm>(*this, scope, "input_layernorm", config.width, config.norm_epsilon);
  const auto attn = add<Group>(*this, scope, "self_attn");
  const Scope attn_scope = scope / "self_attn";
  q_proj_ = add<Linear>(*attn, attn_scope, "q_proj", into_heads(query));
  k_proj_ = add<Linear>(*attn, attn_scope, "k_proj", into_heads(key));
  v_proj_ = add<Linear>(*attn, attn_scope, "v_proj", into_heads(key));
  o_proj_ = add<Linear>(
      *attn, attn_scope, "o_proj",
      LinearOptions{query, config.width, config.attention_output_bias, Role::residual_weight});
  post_attention_layernorm_ =
      add<RmsNorm>(*this, scope, "post_attention_layernorm", config.width, config.norm_epsilon);
  if (config.experts > 0) {
    experts_ = add<Experts>(*this, scope, "block_sparse_moe", config);
  } else {
    mlp_ = add<GatedMlp>(*this, scope, "mlp", config,
                         GatedMlp::Names{"gate_proj", "up_proj", "down_proj"});
  }
}

Tensor LlamaLayer::attention(const Tensor& x, const Positions& positions,
                             KeyValueCache* cache) const {
  const auto in_heads = [&](const Linear& linear) {
    return linear.forward(x).view({x.size(0), x.size(1), -1, config_.head_width});
  };
  const Tensor query = rotate(in_heads(*q_proj_), positions, config_).transpose(1, 2);
  KeyValueCache::Seen seen{rotate(in_heads(*k_proj_), positions, config_).transpose(1, 2),
                           in_heads(*v_proj_).transpose(1, 2)};
  if (cache != nullptr) seen = cache->add(index_, seen.keys, seen.values);
  Attention attention = attention_;
  if (!is_training()) attention.dropout = 0;
  return o_proj_->forward(attend(query, seen.keys, seen.values, positions, attention));
}

Tensor LlamaLayer::forward(const Tensor& hidden, const Positions& positions,
                           KeyValueCache* cache) const {
  const Tensor seen = hidden + attention(input_layernorm_->forward(hidden), positions, cache);
  const Tensor x = post_attention_layernorm_->forward(seen);
  return seen + (mlp_ ? mlp_->forward(x) : experts_->forward(x));
}

Llama::Llama(const ModelConfig& config, const Scope& root) : Model(config) {
  const Scope scope = root / "model";
  const auto model = add<Group>(*this, root, "model");
  embed_tokens_ = add<Embedding>(*model, scope, "embed_tokens", config.vocabulary, config.width);
  const auto layers = add<Group>(*model, scope, "layers");
  for (int64_t index = 0; index < config.layers; ++index) {
    layers_.push_back(
        add<LlamaLayer>(*layers, scope / "layers", std::to_string(index), config, index));
  }
  norm_ = add<RmsNorm>(*model, scope, "norm", config.width, config.norm_epsilon);
  if (!config.tied)
    lm_head_ = add<Embedding>(*this, root, "lm_head", config.vocabulary, config.width);
}

Tensor Llama::embed(const Tensor& tokens, const Positions&) {
  return embed_tokens_->forward(tokens);
}

Tensor Llama::layer(int64_t index, const Tensor& hidden, const Positions& positions,
                    KeyValueCache* cache) {
  return layers_.at(static_cast<size_t>(index))->forward(hidden, positions, cache);
}

Tensor Llama::final_norm(const Tensor& hidden) { return norm_->forward(hidden); }

const Tensor& Llama::head_weight() const { return (lm_head_ ? lm_head_ : embed_tokens_)->weight(); }

void Llama::record_router(std::vector<Tensor>* into) {
  for (const auto& layer : layers_)
    if (layer->experts() != nullptr) layer->experts()->router_logits = into;
}

}  // namespace bottomless::train
