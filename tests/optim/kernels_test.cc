// Every SIMD target of this processor against the reference, bit for bit: all rules, all formats, all lengths around those
// where something changes, starts at any element.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "optim/array_set.h"
#include "optim/optimizers.h"
#include "optim/quantised.h"
#include "optim/reference.h"
#include "optim/targets.h"

namespace bottomless::optim {
namespace {

constexpr size_t kCapacity = 1100;

std::vector<size_t> lengths() {
  std::vector<size_t> all;
  for (size_t length = 0; length <= 70; ++length) all.push_back(length);
  for (const size_t length : {255, 256, 257, 300, 511, 512, 513, 1023, 1024, 1025, 1060})
    all.push_back(length);
  return all;
}

std::vector<ArrayFormats> all_formats(const std::vector<StateKind>& firsts,
                                      const std::vector<StateKind>& seconds) {
  std::vector<ArrayFormats> all;
  for (const Element parameter : kElements)
    for (const bool has_master : {false, true})
      for (const Element gradient : kElements)
        for (const StateKind first : firsts)
          for (const StateKind second : seconds)
            all.push_back({parameter, has_master, gradient, first, second});
  return all;
}

template <class Rule>
void expect_bits_of_reference(const Rule& rule, const ArrayFormats& formats, Random& random) {
  const ArraySet before(formats, kCapacity, random);
  for (const size_t length : lengths()) {
    const size_t offset = random.below(20);
    ArraySet expected = before;
    const Outcome wanted = reference::update(rule, expected.arrays(offset, length));
    for (const Target target : targets()) {
      const OnlyTarget only(target);
      ArraySet actual = before;
      const Outcome got = update(rule, actual.arrays(offset, length));
      ASSERT_EQ(actual.difference(expected), "")
          << target.name << ", " << length << " elements from " << offset << ", "
          << describe(formats);
      ASSERT_EQ(got.finite, wanted.finite) << target.name;
    }
  }
}

TEST(Kernels, RunOnEveryTargetThatTheProcessorHas) {
  const std::vector<Target> all = targets();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(chosen_target().id, all.front().id);
  for (const Target target : all) {
    const OnlyTarget only(target);
    EXPECT_EQ(chosen_target().id, target.id) << target.name;
    std::printf("%s%s", target.id == all.front().id ? "targets: " : ", ", target.name.data());
  }
  std::printf("\n");
  EXPECT_EQ(targets().size(), all.size());
}

TEST(Kernels, AdamHasTheBitsOfTheReference) {
  Random random(101);
  BOTTOMLESS_TRACE_SEED(random);
  for (const ArrayFormats& formats : all_formats(kStateKinds, kStateKinds)) {
    for (const bool decoupled : {false, true}) {
      const AdamRule rule{.rate = 0.01,
                          .weight_decay = random.one_in(4) ? 0 : 0.1,
                          .decoupled = decoupled,
                          .maximize = random.one_in(2),
                          .gradient_factor = 0.37f,
                          .step = random.between(1, 1000)};
      expect_bits_of_reference(rule, formats, random);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Kernels, SgdHasTheBitsOfTheReference) {
  Random random(102);
  BOTTOMLESS_TRACE_SEED(random);
  for (const ArrayFormats& formats : all_formats(kStateKinds, {{}})) {
    for (const double momentum : {0.0, 0.9}) {
      for (const bool nesterov : {false, true}) {
        if (nesterov && momentum == 0) continue;
        const SgdRule rule{.rate = 0.01,
                           .momentum = momentum,
                           .dampening = nesterov ? 0 : 0.3,
                           .weight_decay = random.one_in(4) ? 0 : 0.1,
                           .nesterov = nesterov,
                           .maximize = random.one_in(2),
                           .gradient_factor = 0.37f,
                           .step = random.between(1, 3)};
        expect_bits_of_reference(rule, formats, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Kernels, AdagradHasTheBitsOfTheReference) {
  Random random(103);
  BOTTOMLESS_TRACE_SEED(random);
  for (const ArrayFormats& formats : all_formats({{}}, kStateKinds)) {
    const AdagradRule rule{.weight_decay = random.one_in(4) ? 0 : 0.1,
                           .maximize = random.one_in(2),
                           .gradient_factor = 0.37f,
                           .step = random.between(1, 1000)};
    expect_bits_of_reference(rule, formats, random);
    if (HasFatalFailure()) return;
  }
}

TEST(Kernels, LionHasTheBitsOfTheReference) {
  Random random(104);
  BOTTOMLESS_TRACE_SEED(random);
  for (const ArrayFormats& formats : all_formats(kStateKinds, {{}})) {
    const LionRule rule{.weight_decay = random.one_in(4) ? 0 : 0.1,
                        .maximize = random.one_in(2),
                        .gradient_factor = 0.37f,
                        .step = random.between(1, 1000)};
    expect_bits_of_reference(rule, formats, random);
    if (HasFatalFailure()) return;
  }
}

// One bad gradient at each position: found, and its traces are those of the reference.
template <class Rule>
void expect_bad_gradients_found(const Rule& rule, Random& random) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr size_t kLength = 300;
  std::vector<Element> elements = kElements;
  for (const Element gradient : kElements) {
    for (const StateFormat format :
         {StateFormat::float32, StateFormat::bfloat16, StateFormat::quantised8}) {
      // With a parameter like the gradient, and one that is converted.
      const Element parameter = random.one_in(2) ? gradient : random.pick(elements);
      const ArrayFormats formats{parameter, random.one_in(2), gradient, {format}, {format}};
      ArraySet before(formats, kLength, random);
      for (size_t i = 0; i < kLength; ++i)  // nothing that the factor makes infinite
        before.set_gradient(i, static_cast<float>(random.below(1000)));
      for (size_t position = 0; position < kLength; ++position) {
        ArraySet bad = before;
        // The last one is a NaN that a careless rounding makes zero.
        bad.set_gradient(position, position % 4 == 0   ? kInfinity
                                   : position % 4 == 1 ? -kInfinity
                                   : position % 4 == 2 ? std::numeric_limits<float>::quiet_NaN()
                                                       : std::bit_cast<float>(0x7FFFFFFF));
        ArraySet expected = bad;
        ASSERT_FALSE(reference::update(rule, expected.arrays(0, kLength)).finite);
        ArraySet actual = bad;
        ASSERT_FALSE(update(rule, actual.arrays(0, kLength)).finite) << position;
        ASSERT_EQ(actual.difference(expected), "") << position << ", " << describe(formats);
        ASSERT_TRUE(update(rule, bad.arrays(0, position)).finite) << position;
      }
    }
  }
}

TEST(Kernels, FindABadGradientAtEachPosition) {
  Random random(105);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Target target : targets()) {
    const OnlyTarget only(target);
    SCOPED_TRACE(target.name);
    expect_bad_gradients_found(AdamRule{.weight_decay = 0.1}, random);
    expect_bad_gradients_found(SgdRule{.momentum = 0.9}, random);
    expect_bad_gradients_found(SgdRule{}, random);
    expect_bad_gradients_found(AdagradRule{}, random);
    expect_bad_gradients_found(LionRule{}, random);
  }
}

TEST(Kernels, FindAGradientThatTheFactorMakesInfinite) {
  Random random(106);
  BOTTOMLESS_TRACE_SEED(random);
  ArraySet set({}, std::vector<float>(10));
  set.set_gradient(7, 1e30f);
  EXPECT_TRUE(update(LionRule{}, set.arrays(0, 10)).finite);
  EXPECT_FALSE(update(LionRule{.gradient_factor = 1e10f}, set.arrays(0, 10)).finite);
  EXPECT_TRUE(update(LionRule{.gradient_factor = 1e10f}, set.arrays(0, 7)).finite);
}

// Kernels look at sums of gradients first, and must not believe one that is infinite.
TEST(Kernels, TakeGradientsWhoseSumIsInfiniteForFinite) {
  Random random(109);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr size_t kLength = 300;
  for (const Target target : targets()) {
    const OnlyTarget only(target);
    SCOPED_TRACE(target.name);
    for (const Element gradient : {Element::float32, Element::bfloat16}) {
      for (const StateKind kind : kStateKinds) {
        const ArrayFormats formats{gradient, random.one_in(2), gradient, kind, kind};
        ArraySet expected(formats, kLength, random);
        for (size_t i = 0; i < kLength; ++i) expected.set_gradient(i, i < 130 ? 1.0f : 3e38f);
        ArraySet actual = expected;
        ASSERT_TRUE(reference::update(AdamRule{}, expected.arrays(0, kLength)).finite);
        ASSERT_TRUE(update(AdamRule{}, actual.arrays(0, kLength)).finite) << describe(formats);
        ASSERT_EQ(actual.difference(expected), "") << describe(formats);
      }
    }
  }
}

// A parameter brings a NaN into its states by weight decay, and it is no gradient that is not finite.
TEST(Kernels, KeepTheNanOfAParameterInItsStates) {
  Random random(110);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr size_t kLength = 300;
  for (const Target target : targets()) {
    const OnlyTarget only(target);
    SCOPED_TRACE(target.name);
    for (const StateKind kind : kStateKinds) {
      const ArrayFormats formats{.first = kind, .second = kind};
      ArraySet expected(formats, kLength, random);
      for (size_t i = 0; i < kLength; ++i) expected.set_gradient(i, 1.0f);
      // One that a careless rounding makes zero.
      static_cast<float*>(expected.arrays(0, kLength).parameter)[200] =
          std::bit_cast<float>(0x7FFFFFFF);
      ArraySet actual = expected;
      const AdamRule rule{.weight_decay = 0.1};
      ASSERT_TRUE(reference::update(rule, expected.arrays(0, kLength)).finite);
      ASSERT_TRUE(update(rule, actual.arrays(0, kLength)).finite) << describe(formats);
      ASSERT_EQ(actual.difference(expected), "") << describe(formats);
    }
  }
}

TEST(Kernels, GiveTheSameBitsInPieces) {
  Random random(107);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr size_t kLength = 9 * kBlock + 99;
  for (const StateKind kind : kStateKinds) {
    const ArrayFormats formats{.parameter = Element::bfloat16, .first = kind, .second = kind};
    const ArraySet before(formats, kLength, random);
    const AdamRule rule{.step = 5};
    ArraySet whole = before;
    update(rule, whole.arrays(0, kLength));
    ArraySet pieces = before;
    for (size_t start = 0; start < kLength;) {
      const size_t count = std::min(random.between(1, 5) * kBlock, kLength - start);
      Arrays piece = pieces.arrays(start, count);
      // ArraySet's scales begin at the offset; a caller's begin with the array.
      if (kind.format == StateFormat::quantised8) {
        piece.first.scales -= start - start / kBlock;
        piece.second.scales -= start - start / kBlock;
      }
      update(rule, piece);
      start += count;
    }
    EXPECT_EQ(pieces.difference(whole), "") << describe(formats);
  }
}

TEST(Kernels, LeaveNothingToDoForNoElements) {
  EXPECT_TRUE(update(AdamRule{}, Arrays{}).finite);
  EXPECT_TRUE(update(SgdRule{.momentum = 0.9}, Arrays{}).finite);
}

TEST(KernelsDeathTest, StopWhereAStateIsMissing) {
  ArraySet set({}, std::vector<float>(4));
  Arrays arrays = set.arrays(0, 4);
  arrays.second.values = nullptr;
  EXPECT_DEATH(update(AdamRule{}, arrays), "did not give");
  arrays.first.format = StateFormat::quantised8;
  EXPECT_DEATH(update(LionRule{}, arrays), "has scales");
}

}  // namespace
}  // namespace bottomless::optim
