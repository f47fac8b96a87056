#include "train/models/model.h"

#include <ATen/ATen.h>

#include "train/models/gpt2.h"
#include "train/models/head_loss.h"
#include "train/models/llama.h"

namespace bottomless::train {
namespace {

class Listed final : public ParameterSource {
 public:
  torch::Tensor make(const ParameterSpec& spec) override {
    specs.push_back(spec);
    return at::empty(spec.shape, at::TensorOptions(at::kFloat).device(at::kMeta));
  }
  std::vector<ParameterSpec> specs;
};

}  // namespace

torch::Tensor Model::head(const torch::Tensor& hidden) {
  return at::linear(final_norm(hidden), head_weight());
}

torch::Tensor Model::loss(const torch::Tensor& hidden, const torch::Tensor& targets, double scale) {
  return head_loss(final_norm(hidden), head_weight(), targets, scale);
}

torch::Tensor Model::forward(const torch::Tensor& tokens) {
  return forward(tokens, Positions::following(0, tokens.size(1)));
}

torch::Tensor Model::forward(const torch::Tensor& tokens, const Positions& positions,
                             KeyValueCache* cache) {
  torch::Tensor hidden = embed(tokens, positions);
  for (int64_t index = 0; index < layers(); ++index)
    hidden = layer(index, hidden, positions, cache);
  return head(hidden);
}

void Model::record_router(std::vector<torch::Tensor>*) {}

std::shared_ptr<Model> make_model(const ModelConfig& config, ParameterSource& source) {
  if (config.architecture == Architecture::gpt2)
    return std::make_shared<Gpt2>(config, Scope(source));
  return std::make_shared<Llama>(config, Scope(source));
}

std::vector<ParameterSpec> parameters_of(const ModelConfig& config) {
  Listed listed;
  make_model(config, listed);
  return std::move(listed.specs);
}

int64_t count_parameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const ParameterSpec& spec : parameters_of(config)) {
    int64_t elements = 1;
    for (const int64_t size : spec.shape) elements *= size;
    count += elements;
  }
  return count;
}

}  // namespace bottomless::train
