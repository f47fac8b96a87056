// GPT-2: learned positions, layer norms, one product for query, key and value.
#pragma once
#include <memory>
#include <vector>

#include "train/models/layers.h"
#include "train/models/model.h"

namespace bottomless::train {

class Gpt2Layer : public torch::nn::Module {
 public:
  Gpt2Layer(const Scope& scope, const ModelConfig& config, int64_t index);
  torch::Tensor forward(const torch::Tensor& hidden, const Positions& positions,
                        KeyValueCache* cache) const;

 private:
  torch::Tensor attention(const torch::Tensor& x, const Positions& positions,
                          KeyValueCache* cache) const;
  torch::Tensor dropped(const torch::Tensor& x) const;

  const int64_t index_;
  const int64_t heads_;
  const double residual_dropout_;
  const Activation activation_;
  Attention attention_;
  std::shared_ptr<LayerNorm> ln_1_, ln_2_;
  std::shared_ptr<Linear> c_attn_, attention_out_, c_fc_, mlp_out_;
};

class Gpt2 final : public Model {
 public:
  Gpt2(const ModelConfig& config, const Scope& scope);

  torch::Tensor embed(const torch::Tensor& tokens, const Positions& positions) override;
  torch::Tensor layer(int64_t index, const torch::Tensor& hidden, const Positions& positions,
                      KeyValueCache* cache) override;
  torch::Tensor final_norm(const torch::Tensor& hidden) override;
  const torch::Tensor& head_weight() const override;

 private:
  std::shared_ptr<Embedding> wte_, wpe_, lm_head_;  // the last is null if it is tied to the first
  std::vector<std::shared_ptr<Gpt2Layer>> h_;
  std::shared_ptr<LayerNorm> ln_f_;
};

}  // namespace bottomless::train
