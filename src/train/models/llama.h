// The Llama family: rotary positions, root-mean-square norms, a gated feed-forward part or a mixture of experts. Llama,
// Qwen2, Mistral and Mixtral are configurations of it.
#pragma once
#include <memory>
#include <vector>

#include "train/models/experts.h"
#include "train/models/layers.h"
#include "train/models/model.h"

namespace bottomless::train {

class LlamaLayer : public torch::nn::Module {
 public:
  LlamaLayer(const Scope& scope, const ModelConfig& config, int64_t index);
  torch::Tensor forward(const torch::Tensor& hidden, const Positions& positions,
                        KeyValueCache* cache) const;
  Experts* experts() const { return experts_.get(); }  // null: it has none

 private:
  torch::Tensor attention(const torch::Tensor& x, const Positions& positions,
                          KeyValueCache* cache) const;

  const ModelConfig config_;
  const int64_t index_;
  Attention attention_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<GatedMlp> mlp_;  // or
  std::shared_ptr<Experts> experts_;
};

class Llama final : public Model {
 public:
  Llama(const ModelConfig& config, const Scope& scope);

  torch::Tensor embed(const torch::Tensor& tokens, const Positions& positions) override;
  torch::Tensor layer(int64_t index, const torch::Tensor& hidden, const Positions& positions,
                      KeyValueCache* cache) override;
  torch::Tensor final_norm(const torch::Tensor& hidden) override;
  const torch::Tensor& head_weight() const override;
  void record_router(std::vector<torch::Tensor>* into) override;

 private:
  std::shared_ptr<Embedding> embed_tokens_, lm_head_;  // the last is null if it is tied
  std::vector<std::shared_ptr<LlamaLayer>> layers_;
  std::shared_ptr<RmsNorm> norm_;
};

}  // namespace bottomless::train
