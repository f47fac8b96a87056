// The feed-forward parts of the Llama family: one for all tokens, or several of which each token's router picks a few.
// Thread-safety: as torch's modules; while router_logits is set, one thread at a time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/models/layers.h"

namespace bottomless::train {

// down(activation(gate(x)) * up(x))
class GatedMlp : public torch::nn::Module {
 public:
  struct Names {
    std::string gate, up, down;
  };
  GatedMlp(const Scope& scope, const ModelConfig& config, const Names& names);
  torch::Tensor forward(const torch::Tensor& x) const;

 private:
  const Activation activation_;
  std::shared_ptr<Linear> gate_, up_, down_;
};

// Every token goes through the experts that its router prefers, weighted by its preference. An expert that no token of a
// batch wants is not touched: it stays where it is, and has no gradient.
class Experts : public torch::nn::Module {
 public:
  Experts(const Scope& scope, const ModelConfig& config);
  torch::Tensor forward(const torch::Tensor& x) const;

  std::vector<torch::Tensor>* router_logits = nullptr;  // see Model::record_router()

 private:
  const int64_t per_token_;
  const double jitter_;
  std::shared_ptr<Linear> gate_;
  std::vector<std::shared_ptr<GatedMlp>> experts_;
};

// Grows with the inequality between experts, over the logits of all layers: as transformers has it, to be multiplied by
// the configuration's router_loss_coefficient.
torch::Tensor load_balancing_loss(const std::vector<torch::Tensor>& router_logits,
                                  int64_t per_token);

}  // namespace bottomless::train
