#include "train/models/layers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"

namespace bottomless::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor widened(const Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

// torch's own makes a dozen passes over x on a CPU, forward and back; these are half as many.
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double epsilon) {
    const Tensor wide = widened(x);
    const auto width = static_cast<double>(x.size(-1));
    const Tensor scale = at::linalg_vector_norm(wide, 2, at::IntArrayRef{-1}, /*keepdim=*/true)
                             .square_()
                             .div_(width)
                             .add_(epsilon)
                             .rsqrt_();
    context->save_for_backward({x, weight, scale});
    return at::mul(wide, scale).to(x.scalar_type()).mul_(weight);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2];
    const Tensor normal = at::mul(widened(x), scale);
    const Tensor gradient = widened(gradients[0]);
    Tensor by_weight;
    if (context->needs_input_grad(1)) {
      by_weight = at::mul(gradient, normal).sum_to_size(weight.sizes()).to(weight.scalar_type());
    }
    Tensor by_x;
    if (context->needs_input_grad(0)) {
      by_x = at::mul(gradient, weight);
      const Tensor along = at::mul(by_x, normal).mean(at::IntArrayRef{-1}, /*keepdim=*/true);
      by_x = by_x.addcmul_(normal, along, -1).mul_(scale).to(x.scalar_type());
    }
    return {by_x, by_weight, Tensor()};
  }
};

}  // namespace

Linear::Linear(const Scope& scope, const LinearOptions& options) : options_(options) {
  const bool outputs_first = options.order == LinearOptions::Order::outputs_first;
  const std::vector<int64_t> shape = outputs_first ? std::vector{options.outputs, options.inputs}
                                                   : std::vector{options.inputs, options.outputs};
  weight_ = register_parameter("weight", scope.make("weight", shape, options.role));
  if (options.bias)
    bias_ = register_parameter("bias", scope.make("bias", {options.outputs}, Role::bias));
}

Tensor Linear::forward(const Tensor& x) const {
  Tensor y;
  if (options_.order == LinearOptions::Order::outputs_first) {
    y = bias_.defined() ? at::linear(x, weight_, bias_) : at::linear(x, weight_);
  } else {
    // Not linear() with a transposed weight: its gradient would come transposed and be copied once more.
    std::vector<int64_t> shape = x.sizes().vec();
    shape.back() = options_.outputs;
    const Tensor rows = x.reshape({-1, options_.inputs});
    y = (bias_.defined() ? at::addmm(bias_, rows, weight_) : at::mm(rows, weight_)).view(shape);
  }
  if (!low_rank) return y;
  const Tensor seen = at::dropout(x, low_rank->dropout, is_training());
  return at::add(y, at::linear(at::linear(seen, low_rank->a), low_rank->b), low_rank->scale);
}

Embedding::Embedding(const Scope& scope, int64_t rows, int64_t width)
    : weight_(register_parameter("weight", scope.make("weight", {rows, width}, Role::weight))) {}

Tensor Embedding::forward(const Tensor& numbers) const { return at::embedding(weight_, numbers); }

LayerNorm::LayerNorm(const Scope& scope, int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", scope.make("weight", {width}, Role::norm))),
      bias_(register_parameter("bias", scope.make("bias", {width}, Role::bias))) {}

Tensor LayerNorm::forward(const Tensor& x) const {
  return at::layer_norm(x, weight_.sizes(), weight_, bias_, epsilon_);
}

RmsNorm::RmsNorm(const Scope& scope, int64_t width, double epsilon)
    : epsilon_(epsilon),
      weight_(register_parameter("weight", scope.make("weight", {width}, Role::norm))) {}

Tensor RmsNorm::forward(const Tensor& x) const {
  return RmsNormFunction::apply(x, weight_, epsilon_);
}

Tensor activate(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::silu:
      return at::silu(x);
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::relu:
      return at::relu(x);
  }
  BOTTOMLESS_CHECK(false, "every activation is handled above");
  return {};
}

}  // namespace bottomless::train
