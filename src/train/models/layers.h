// The parts that all models are made of.
// Thread-safety: as torch's modules: forward() from several threads while nobody changes parameters.
#pragma once
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>

#include "train/models/config.h"
#include "train/models/parameters.h"

namespace bottomless::train {

// What is learned beside a weight that stays as it is: scale * B(A x). The tensors belong to whoever attached them; they
// are not among the model's parameters, which stay those of its directory.
struct LowRank {
  torch::Tensor a;  // [rank, inputs]
  torch::Tensor b;  // [outputs, rank]
  double scale = 1;
  double dropout = 0;  // of x, in training
};

struct LinearOptions {
  enum class Order { outputs_first, inputs_first };  // of the weight; GPT-2's files have the second
  int64_t inputs = 0;
  int64_t outputs = 0;
  bool bias = false;
  Role role = Role::weight;
  Order order = Order::outputs_first;
};

class Linear : public torch::nn::Module {
 public:
  Linear(const Scope& scope, const LinearOptions& options);

  torch::Tensor forward(const torch::Tensor& x) const;

  const LinearOptions& options() const { return options_; }
  const torch::Tensor& weight() const { return weight_; }

  std::optional<LowRank> low_rank;

 private:
  const LinearOptions options_;
  torch::Tensor weight_;
  torch::Tensor bias_;  // undefined without
};

class Embedding : public torch::nn::Module {
 public:
  Embedding(const Scope& scope, int64_t rows, int64_t width);
  torch::Tensor forward(const torch::Tensor& numbers) const;
  const torch::Tensor& weight() const { return weight_; }

 private:
  torch::Tensor weight_;
};

class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(const Scope& scope, int64_t width, double epsilon);
  torch::Tensor forward(const torch::Tensor& x) const;

 private:
  const double epsilon_;
  torch::Tensor weight_;
  torch::Tensor bias_;
};

// x divided by the root of its mean square, then scaled. Worked out in float32 at least.
class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(const Scope& scope, int64_t width, double epsilon);
  torch::Tensor forward(const torch::Tensor& x) const;

 private:
  const double epsilon_;
  torch::Tensor weight_;
};

torch::Tensor activate(const torch::Tensor& x, Activation activation);

}  // namespace bottomless::train
