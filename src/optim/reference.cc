#include "optim/reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "optim/factors.h"
#include "optim/quantised.h"

namespace bottomless::optim::reference {
namespace {

float load(Moment moment, const State& state, size_t i) {
  switch (state.format) {
    case StateFormat::float32:
      return static_cast<const float*>(state.values)[i];
    case StateFormat::bfloat16:
      return bfloat16_to_float32(static_cast<const uint16_t*>(state.values)[i]);
    case StateFormat::quantised8:
      break;
  }
  const float scale = state.scales[i / kBlock];
  return moment == Moment::first
             ? decode_first(static_cast<const int8_t*>(state.values)[i], scale)
             : decode_second(static_cast<const uint8_t*>(state.values)[i], scale);
}

void store(Moment moment, const State& state, size_t i, float value, uint64_t step) {
  switch (state.format) {
    case StateFormat::float32:
      static_cast<float*>(state.values)[i] = value;
      return;
    case StateFormat::bfloat16:
      static_cast<uint16_t*>(state.values)[i] =
          state.rounding == Rounding::nearest
              ? float32_to_bfloat16(value)
              : float32_to_bfloat16(value, rounding_noise(moment, step, i % kBlock));
      return;
    case StateFormat::quantised8:
      break;
  }
  const float scale = state.scales[i / kBlock];
  const uint16_t noise = rounding_noise(moment, step, i % kBlock);
  if (moment == Moment::first) {
    static_cast<int8_t*>(state.values)[i] = encode_first(value, scale, noise);
  } else {
    static_cast<uint8_t*>(state.values)[i] = encode_second(value, scale, noise);
  }
}

// A whole state as float32. Quantised blocks can be written only when all of their elements are known.
class StateValues {
 public:
  StateValues(Moment moment, const State& state, bool used, size_t count)
      : moment_(moment), state_(state), values_(used ? count : 0) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = load(moment_, state_, i);
  }

  float& operator[](size_t i) { return values_.empty() ? unused_ : values_[i]; }

  void write(uint64_t step) {
    if (state_.format == StateFormat::quantised8) {
      for (size_t start = 0; start < values_.size(); start += kBlock)
        state_.scales[start / kBlock] =
            block_scale(&values_[start], std::min(kBlock, values_.size() - start));
    }
    for (size_t i = 0; i < values_.size(); ++i) store(moment_, state_, i, values_[i], step);
  }

 private:
  Moment moment_;
  State state_;
  std::vector<float> values_;
  float unused_ = 0;
};

struct Uses {
  bool first, second;
};

// `rule(parameter, gradient, first, second)` updates one element.
template <class Rule>
Outcome each(const Arrays& arrays, Uses uses, float factor, uint64_t step, Rule rule) {
  StateValues first(Moment::first, arrays.first, uses.first, arrays.count);
  StateValues second(Moment::second, arrays.second, uses.second, arrays.count);
  Outcome outcome;
  for (size_t i = 0; i < arrays.count; ++i) {
    const float gradient = load_element(arrays.gradient_type, arrays.gradient, i) * factor;
    if (!std::isfinite(gradient)) outcome.finite = false;
    float parameter = arrays.master != nullptr
                          ? arrays.master[i]
                          : load_element(arrays.parameter_type, arrays.parameter, i);
    rule(parameter, gradient, first[i], second[i]);
    if (arrays.master != nullptr) arrays.master[i] = parameter;
    store_element(arrays.parameter_type, arrays.parameter, i, parameter);
  }
  first.write(step);
  second.write(step);
  return outcome;
}

}  // namespace

Outcome update(const AdamRule& rule, const Arrays& arrays) {
  const AdamFactors f = fold(rule, arrays);
  return each(arrays, {.first = true, .second = true}, f.gradient, rule.step,
              [&f](float& p, float g, float& m, float& v) {
                if (f.coupled) g = g + f.decay * p;
                p = p * f.kept;
                m = f.beta1 * m + f.new1 * g;
                v = f.beta2 * v + f.new2 * g * g;
                p = p + f.negative_rate * m / (std::sqrt(v) * f.root_factor + f.epsilon);
              });
}

Outcome update(const SgdRule& rule, const Arrays& arrays) {
  const SgdFactors f = fold(rule, arrays);
  return each(arrays, {.first = f.has_momentum, .second = false}, f.gradient, rule.step,
              [&f](float& p, float g, float& buffer, float&) {
                if (f.coupled) g = g + f.decay * p;
                if (f.has_momentum) {
                  buffer = f.momentum * buffer + f.added * g;
                  g = f.nesterov ? g + f.momentum * buffer : buffer;
                }
                p = p + f.negative_rate * g;
              });
}

Outcome update(const AdagradRule& rule, const Arrays& arrays) {
  const AdagradFactors f = fold(rule, arrays);
  return each(arrays, {.first = false, .second = true}, f.gradient, rule.step,
              [&f](float& p, float g, float&, float& sum) {
                if (f.coupled) g = g + f.decay * p;
                sum = sum + g * g;
                p = p + f.negative_rate * g / (std::sqrt(sum) + f.epsilon);
              });
}

Outcome update(const LionRule& rule, const Arrays& arrays) {
  const LionFactors f = fold(rule, arrays);
  return each(arrays, {.first = true, .second = false}, f.gradient, rule.step,
              [&f](float& p, float g, float& m, float&) {
                const float direction = f.beta1 * m + f.new1 * g;
                m = f.beta2 * m + f.new2 * g;
                p = p * f.kept;
                p = p - (direction > 0 ? f.rate : direction < 0 ? -f.rate : 0.0f);
              });
}

SquareSum sum_of_squares(const void* gradient, Element type, size_t count) {
  std::array<double, 16> sums{};
  for (size_t i = 0; i < count; ++i) {
    const double value = load_element(type, gradient, i);
    sums[i % 16] += value * value;
  }
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return {.sum = sums[0], .finite = std::isfinite(sums[0])};
}

}  // namespace bottomless::optim::reference
