// A causal language model of any supported architecture, in parts, so that whoever runs it can choose the order: layer by
// layer over many batches, or token by token with a cache. Parameters have the names and shapes of Hugging Face's files.
// Thread-safety: as torch's modules.
#pragma once
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/models/attention.h"
#include "train/models/config.h"
#include "train/models/parameters.h"

namespace bottomless::train {

class Model : public torch::nn::Module {
 public:
  const ModelConfig& config() const { return config_; }
  int64_t layers() const { return config_.layers; }

  // tokens: [batch, time] int64; returns the hidden state, [batch, time, width], of the first layer.
  virtual torch::Tensor embed(const torch::Tensor& tokens, const Positions& positions) = 0;
  // One layer. With a cache the tokens follow those that it holds.
  virtual torch::Tensor layer(int64_t index, const torch::Tensor& hidden,
                              const Positions& positions, KeyValueCache* cache = nullptr) = 0;
  virtual torch::Tensor final_norm(const torch::Tensor& hidden) = 0;
  virtual const torch::Tensor& head_weight() const = 0;  // [vocabulary, width]

  torch::Tensor head(const torch::Tensor& hidden);  // the final norm, and logits
  // The same up to the loss, without all logits at once: see head_loss.h.
  torch::Tensor loss(const torch::Tensor& hidden, const torch::Tensor& targets, double scale);

  // All of it: logits, [batch, time, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens);
  torch::Tensor forward(const torch::Tensor& tokens, const Positions& positions,
                        KeyValueCache* cache = nullptr);

  // From now on every layer of experts adds its router's logits, [tokens, experts], in the order of the calls; null: not
  // any more. For load_balancing_loss(). Models without experts add none.
  virtual void record_router(std::vector<torch::Tensor>* into);

 protected:
  explicit Model(ModelConfig config) : config_(std::move(config)) {}

 private:
  const ModelConfig config_;
};

// Its parameters come from the source, in the order of their use.
std::shared_ptr<Model> make_model(const ModelConfig& config, ParameterSource& source);

// The parameters such a model has, in the order in which it asks for them. Takes no memory for them.
std::vector<ParameterSpec> parameters_of(const ModelConfig& config);
int64_t count_parameters(const ModelConfig& config);

}  // namespace bottomless::train
