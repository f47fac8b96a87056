#include "train/models/rotary.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace bottomless::train {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

enum class Direction : int64_t { forward = 1, back = -1 };

// Pairs are a number and the one half a head further on.
Tensor turned(const Tensor& x, const Tensor& cosine, const Tensor& sine, Direction direction) {
  const int64_t half = x.size(-1) / 2;
  const double sign = direction == Direction::forward ? 1 : -1;
  const Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  Tensor result = at::empty_like(x);
  Tensor result_first = result.narrow(-1, 0, half), result_second = result.narrow(-1, half, half);
  at::mul_out(result_first, first, cosine);
  result_first.addcmul_(second, sine, -sign);
  at::mul_out(result_second, second, cosine);
  result_second.addcmul_(first, sine, sign);
  return result;
}

// The gradient is turned back: nothing of x need be kept for it.
struct RotateFunction : torch::autograd::Function<RotateFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return turned(x, cosine, sine, Direction::forward);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {turned(gradients[0], saved[0], saved[1], Direction::back), Tensor(), Tensor()};
  }
};

Tensor unscaled(double base, int64_t width) {
  const Tensor exponents = at::arange(0, width, 2).to(at::kFloat).div_(static_cast<double>(width));
  return at::pow(at::Scalar(base), exponents).reciprocal_();
}

// Long waves are stretched by the factor, short ones not at all, those between in part.
Tensor llama3_frequencies(const Tensor& plain, const RopeScaling& rope) {
  const auto original = static_cast<double>(rope.original_positions);
  const double longest = original / rope.low_frequency_factor;
  const double shortest = original / rope.high_frequency_factor;
  const Tensor wave = at::reciprocal(plain) * (2 * std::numbers::pi);
  const Tensor share = (original * at::reciprocal(wave) - rope.low_frequency_factor) /
                       (rope.high_frequency_factor - rope.low_frequency_factor);
  const Tensor between = (1 - share) * plain / rope.factor + share * plain;
  const Tensor stretched = at::where(wave > longest, plain / rope.factor, between);
  return at::where(wave < shortest, plain, stretched);
}

}  // namespace

Tensor rotary_frequencies(const ModelConfig& config, int64_t length) {
  const RopeScaling& rope = config.rope;
  double base = config.rope_base;
  if (rope.kind == RopeScaling::Kind::dynamic) {
    // The base grows with what a sequence has more than the model was made for.
    const auto made_for = static_cast<double>(config.positions);
    const double reach = std::max(static_cast<double>(length), made_for) / made_for;
    const auto width = static_cast<double>(config.head_width);
    base *= std::pow(rope.factor * reach - (rope.factor - 1), width / (width - 2));
  }
  const Tensor plain = unscaled(base, config.head_width);
  if (rope.kind == RopeScaling::Kind::linear) return plain / rope.factor;
  if (rope.kind == RopeScaling::Kind::llama3) return llama3_frequencies(plain, rope);
  return plain;
}

Tensor rotate(const Tensor& x, const Positions& positions, const ModelConfig& config) {
  const auto angles = [&] {
    const Tensor frequencies = rotary_frequencies(config, positions.length());
    return (positions.ids().to(at::kFloat).unsqueeze(-1) * frequencies).unsqueeze(2);
  };
  const Tensor& cosine =
      positions.once("cosine", [&] { return angles().cos().to(x.scalar_type()); });
  const Tensor& sine = positions.once("sine", [&] { return angles().sin().to(x.scalar_type()); });
  return RotateFunction::apply(x, cosine, sine);
}

}  // namespace bottomless::train
