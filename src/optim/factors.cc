#include "optim/factors.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace bottomless::optim {
namespace {

void check(const State& state) {
  BOTTOMLESS_CHECK(state.values != nullptr, "the rule keeps a state that the caller did not give");
  BOTTOMLESS_CHECK(state.format != StateFormat::quantised8 || state.scales != nullptr,
                   "a quantised state has scales");
}

void check(const Arrays& arrays, uint64_t step) {
  BOTTOMLESS_CHECK(arrays.parameter != nullptr && arrays.gradient != nullptr,
                   "an update has a parameter and a gradient");
  BOTTOMLESS_CHECK(step > 0, "steps count from 1");
}

// The kernels count on a NaN whose lower half is zero.
float single(double value) {
  return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value);
}

template <class Rule>
float gradient_factor(const Rule& rule) {
  return single(rule.maximize ? -rule.gradient_factor : rule.gradient_factor);
}

}  // namespace

AdamFactors fold(const AdamRule& rule, const Arrays& arrays) {
  if (arrays.count > 0) {
    check(arrays, rule.step);
    check(arrays.first);
    check(arrays.second);
  }
  const auto step = static_cast<double>(rule.step);
  const double correction1 = 1 - std::pow(rule.beta1, step);
  const double correction2 = 1 - std::pow(rule.beta2, step);
  return {.gradient = gradient_factor(rule),
          .coupled = !rule.decoupled && rule.weight_decay != 0,
          .decay = single(rule.weight_decay),
          .kept = rule.decoupled ? single(1 - rule.rate * rule.weight_decay) : 1.0f,
          .beta1 = single(rule.beta1),
          .new1 = single(1 - rule.beta1),
          .beta2 = single(rule.beta2),
          .new2 = single(1 - rule.beta2),
          .root_factor = single(1 / std::sqrt(correction2)),
          .epsilon = single(rule.epsilon),
          .negative_rate = single(-rule.rate / correction1)};
}

SgdFactors fold(const SgdRule& rule, const Arrays& arrays) {
  if (arrays.count > 0) check(arrays, rule.step);
  if (arrays.count > 0 && rule.momentum != 0) check(arrays.first);
  return {.gradient = gradient_factor(rule),
          .coupled = rule.weight_decay != 0,
          .decay = single(rule.weight_decay),
          .has_momentum = rule.momentum != 0,
          .nesterov = rule.nesterov,
          .momentum = single(rule.momentum),
          .added = rule.step == 1 ? 1.0f : single(1 - rule.dampening),
          .negative_rate = single(-rule.rate)};
}

AdagradFactors fold(const AdagradRule& rule, const Arrays& arrays) {
  if (arrays.count > 0) {
    check(arrays, rule.step);
    check(arrays.second);
  }
  return {.gradient = gradient_factor(rule),
          .coupled = rule.weight_decay != 0,
          .decay = single(rule.weight_decay),
          .epsilon = single(rule.epsilon),
          .negative_rate = single(-rule.rate)};
}

LionFactors fold(const LionRule& rule, const Arrays& arrays) {
  if (arrays.count > 0) {
    check(arrays, rule.step);
    check(arrays.first);
  }
  return {.gradient = gradient_factor(rule),
          .kept = single(1 - rule.rate * rule.weight_decay),
          .beta1 = single(rule.beta1),
          .new1 = single(1 - rule.beta1),
          .beta2 = single(rule.beta2),
          .new2 = single(1 - rule.beta2),
          .rate = single(rule.rate)};
}

AdafactorFactors fold(const AdafactorRule& rule) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return {.gradient = gradient_factor(rule),
          .kept = single(1 - rule.rate * rule.weight_decay),
          .averaged = std::pow(static_cast<double>(rule.step), rule.beta2_decay),
          .limit = single(std::min(1 / rule.epsilon1, kLargest))};
}

float moving_average(float before, double mean_square, const AdafactorFactors& factors) {
  return static_cast<float>(before + factors.averaged * (mean_square - before));
}

float inverse_root(float variance) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  const float inverse = 1.0f / std::sqrt(variance);
  return inverse > kLargest ? kLargest : inverse;  // NaN stays
}

float row_factor(float row_variance, double mean, const AdafactorRule& rule) {
  const double divisor = mean < rule.epsilon1 ? rule.epsilon1 : mean;
  if (divisor == 0) return inverse_root(0);
  return inverse_root(static_cast<float>(row_variance / divisor));
}

// max() is that of Python: what is not a number loses.
float negative_rate(const AdafactorRule& rule, double parameters, double updates, size_t count) {
  const double root_count = std::sqrt(static_cast<double>(count));
  const double relative = std::min(rule.rate, 1 / std::sqrt(static_cast<double>(rule.step)));
  const double rate = std::max(rule.epsilon2, std::sqrt(parameters) / root_count) * relative;
  const double excess = std::max(1.0, std::sqrt(updates) / (root_count * rule.clip));
  return single(-rate / excess);
}

}  // namespace bottomless::optim
