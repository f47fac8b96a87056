// The reference against torch.optim 2.13: three steps in float64 there, whose results are written down here.
#include "optim/reference.h"

#include <gtest/gtest.h>

#include <array>

#include "optim/array_set.h"

namespace bottomless::optim {
namespace {

constexpr size_t kElements4 = 4;
using Values = std::array<double, kElements4>;

constexpr std::array<Values, 3> kGradients{
    {{0.1, -0.2, 0.3, 0.0}, {-0.4, 0.05, 0.6, 1e-3}, {0.25, 0.25, -0.5, -2.0}}};

// `factor` times the gradients, undone by the rule's gradient_factor.
template <class RuleOfStep>
void expect_after_three_steps(RuleOfStep rule_of_step, const Values& expected) {
  ArraySet set({}, {0.5f, -1.25f, 3.0f, 0.0f});
  for (uint64_t step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < kElements4; ++i)
      set.set_gradient(i, static_cast<float>(8 * kGradients[step - 1][i]));
    auto rule = rule_of_step(step);
    rule.step = step;
    rule.gradient_factor = 0.125f;
    EXPECT_TRUE(reference::update(rule, set.arrays(0, kElements4)).finite);
  }
  for (size_t i = 0; i < kElements4; ++i) EXPECT_NEAR(set.parameter(i), expected[i], 1e-6) << i;
}

TEST(Reference, AdamIsTorchs) {
  expect_after_three_steps([](uint64_t) { return AdamRule{.rate = 0.01}; },
                           {0.495979387466, -1.23792833983, 2.97818656147, -0.00105600254647});
  expect_after_three_steps([](uint64_t) { return AdamRule{.rate = 0.01, .maximize = true}; },
                           {0.504020612534, -1.26207166017, 3.02181343853, 0.00105600254647});
}

TEST(Reference, AdamWithDecayIsTorchs) {
  AdamRule rule{.rate = 0.01, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1};
  expect_after_three_steps([&rule](uint64_t) { return rule; },
                           {0.493047326971, -1.22918863878, 2.97416565988, -0.00082800422979});
  rule.decoupled = true;
  expect_after_three_steps([&rule](uint64_t) { return rule; },
                           {0.494633279943, -1.2355664418, 2.96982441306, -0.00082025821185});
}

TEST(Reference, SgdIsTorchs) {
  expect_after_three_steps([](uint64_t) { return SgdRule{.rate = 0.1, .weight_decay = 0.1}; },
                           {0.4899485, -1.22322175, 2.872094, 0.199901});
  expect_after_three_steps(
      [](uint64_t) {
        return SgdRule{.rate = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.1};
      },
      {0.485126765, -1.1615996575, 2.73373406, 0.13986749});
  expect_after_three_steps(
      [](uint64_t) {
        return SgdRule{.rate = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true};
      },
      {0.47349, -1.25773, 3.17077, -0.379729});
}

TEST(Reference, AdagradIsTorchs) {
  expect_after_three_steps(
      [](uint64_t step) {
        return AdagradRule{.rate = 0.1 / (1 + 0.5 * static_cast<double>(step - 1)),
                           .epsilon = 1e-6,
                           .weight_decay = 0.1};
      },
      {0.431300794416, -1.15594352268, 2.85456543109, -0.0166000977257});
}

TEST(Reference, LionIsThatOfThePaper) {
  expect_after_three_steps(
      [](uint64_t) { return LionRule{.rate = 0.01, .beta2 = 0.5, .weight_decay = 0.1}; },
      {0.4885314895, -1.23628373875, 2.961038987, 1e-05});
}

TEST(Reference, AMasterIsUpdatedAndTheParameterCastFromIt) {
  ArraySet set({.parameter = Element::bfloat16, .has_master = true}, {1, 1, 1, 1});
  // Each step is far below the last bit of a bfloat16; together they are not.
  for (uint64_t step = 1; step <= 100; ++step) {
    set.set_gradient(0, 1);
    reference::update(SgdRule{.rate = 1e-4, .step = step}, set.arrays(0, kElements4));
  }
  EXPECT_NEAR(set.arrays(0, kElements4).master[0], 0.99, 1e-5);
  EXPECT_NEAR(set.parameter(0), 0.99, 0.002);
  EXPECT_EQ(set.parameter(1), 1);
}

}  // namespace
}  // namespace bottomless::optim
