#include "gpt.h"

#include <torch/torch.h>

#include <cmath>

namespace example {
namespace {

torch::nn::LayerNorm norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

void initialize(GptImpl& model, int64_t layers) {
  torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    torch::Tensor& weight = item.value();
    if (name.ends_with("bias")) {
      weight.zero_();
    } else if (weight.dim() == 2) {
      // Each block adds two terms to the residual stream; scaled so, their sum keeps its size at
      // any depth.
      const bool adds_to_residual = name.ends_with("_out.weight") || name.ends_with("_down.weight");
      torch::nn::init::normal_(weight, 0, adds_to_residual ? 0.02 / std::sqrt(2.0 * layers) : 0.02);
    }
  }
}

}  // namespace

BlockImpl::BlockImpl(const GptOptions& options)
    : heads_(options.heads),
      attention_norm_(register_module("attention_norm", norm(options.width))),
      query_key_value_(
          register_module("query_key_value", torch::nn::Linear(options.width, 3 * options.width))),
      attention_out_(
          register_module("attention_out", torch::nn::Linear(options.width, options.width))),
      mlp_norm_(register_module("mlp_norm", norm(options.width))),
      mlp_up_(register_module("mlp_up", torch::nn::Linear(options.width, 4 * options.width))),
      mlp_down_(register_module("mlp_down", torch::nn::Linear(4 * options.width, options.width))) {}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  x = x + attention_out_(attend(query_key_value_(attention_norm_(x))));
  return x + mlp_down_(torch::gelu(mlp_up_(mlp_norm_(x))));
}

// [batch, length, 3 * width] to [batch, length, width]
torch::Tensor BlockImpl::attend(const torch::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2) / 3;
  const auto parts = x.view({batch, length, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const auto mixed = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], {},
                                                         /*dropout_p=*/0.0, /*is_causal=*/true);
  return mixed.transpose(1, 2).reshape({batch, length, width});
}

GptImpl::GptImpl(const GptOptions& options)
    : symbols_(register_module("symbols", torch::nn::Embedding(options.symbols, options.width))),
      positions_(
          register_module("positions", torch::nn::Embedding(options.context, options.width))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", norm(options.width))) {
  for (int64_t layer = 0; layer < options.layers; ++layer) blocks_->push_back(Block(options));
  initialize(*this, options.layers);
}

torch::Tensor GptImpl::forward(const torch::Tensor& symbols) {
  torch::Tensor x = symbols_(symbols) + positions_(torch::arange(symbols.size(1)));
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  return torch::linear(norm_(x), symbols_->weight);
}

torch::Tensor GptImpl::loss(const torch::Tensor& symbols, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(forward(symbols).flatten(0, 1), targets.flatten());
}

int64_t GptImpl::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters()) count += parameter.numel();
  return count;
}

}  // namespace example
