// A GPT in plain libtorch: pre-norm blocks, causal attention, learned positions, and one matrix
// that both embeds the symbols and predicts them. Nothing here knows that memory may be limited.
// Thread-safety: as torch::nn::Module; use one model from one thread at a time.
#pragma once
#include <torch/nn.h>

#include <cstdint>

namespace example {

struct GptOptions {
  int64_t layers = 17;
  int64_t width = 768;
  int64_t heads = 12;  // must divide the width
  int64_t context = 512;
  int64_t symbols = 256;  // bytes
};

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  torch::Tensor forward(torch::Tensor x);

 private:
  torch::Tensor attend(const torch::Tensor& x);

  int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear query_key_value_;
  torch::nn::Linear attention_out_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear mlp_up_;
  torch::nn::Linear mlp_down_;
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  // Draws all weights from torch's global generator, so torch::manual_seed decides them.
  explicit GptImpl(const GptOptions& options);

  // Symbols [batch, length] to logits [batch, length, symbols]; the length may not exceed the
  // context.
  torch::Tensor forward(const torch::Tensor& symbols);

  // The mean cross-entropy of predicting `targets` from `symbols`, both [batch, length].
  torch::Tensor loss(const torch::Tensor& symbols, const torch::Tensor& targets);

  int64_t parameter_count() const;

 private:
  torch::nn::Embedding symbols_;
  torch::nn::Embedding positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
};
TORCH_MODULE(Gpt);

}  // namespace example
