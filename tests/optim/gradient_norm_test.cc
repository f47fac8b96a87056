#include "optim/gradient_norm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "optim/reference.h"
#include "optim/targets.h"
#include "support/random.h"

namespace bottomless::optim {
namespace {

constexpr size_t kCapacity = 2000;

struct Gradient {
  Element type;
  std::vector<std::byte> bytes = std::vector<std::byte>(kCapacity * bytes_of(type));

  void set(size_t i, float value) { store_element(type, bytes.data(), i, value); }
  const void* from(size_t offset) const { return bytes.data() + offset * bytes_of(type); }
};

Gradient random_gradient(Element type, Random& random) {
  Gradient gradient{type};
  for (size_t i = 0; i < kCapacity; ++i) {
    const auto fraction = static_cast<float>(random.below(1 << 24)) / (1 << 24) - 0.5f;
    gradient.set(i, std::ldexp(fraction, static_cast<int>(random.below(20)) - 10));
  }
  return gradient;
}

TEST(GradientNorm, HasTheBitsOfTheReferenceOnEveryTarget) {
  Random random(201);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Element type : {Element::float32, Element::bfloat16, Element::float16}) {
    const Gradient gradient = random_gradient(type, random);
    for (size_t count = 0; count < 1100; ++count) {
      const void* from = gradient.from(random.below(kCapacity - count));
      const SquareSum expected = reference::sum_of_squares(from, type, count);
      for (const Target target : targets()) {
        const OnlyTarget only(target);
        const SquareSum actual = sum_of_squares(from, type, count);
        ASSERT_EQ(std::bit_cast<uint64_t>(actual.sum), std::bit_cast<uint64_t>(expected.sum))
            << target.name << ", " << count << " elements";
        ASSERT_TRUE(actual.finite);
      }
    }
  }
}

TEST(GradientNorm, IsTheSumOfSquares) {
  Gradient gradient{Element::bfloat16};
  gradient.set(0, 3);
  gradient.set(17, -4);
  EXPECT_EQ(sum_of_squares(gradient.from(0), Element::bfloat16, kCapacity).sum, 25);
  EXPECT_EQ(sum_of_squares(gradient.from(0), Element::bfloat16, 17).sum, 9);
}

TEST(GradientNorm, OfLargeGradientsDoesNotOverflow) {
  Gradient gradient{Element::float32};
  for (size_t i = 0; i < kCapacity; ++i) gradient.set(i, std::numeric_limits<float>::max());
  const SquareSum found = sum_of_squares(gradient.from(0), Element::float32, kCapacity);
  EXPECT_TRUE(found.finite);
  const double largest = std::numeric_limits<float>::max();
  EXPECT_NEAR(found.sum / (kCapacity * largest * largest), 1, 1e-12);
}

TEST(GradientNorm, FindsABadElementAtEachPosition) {
  Random random(202);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Element type : {Element::float32, Element::bfloat16, Element::float16}) {
    const Gradient good = random_gradient(type, random);
    for (const Target target : targets()) {
      const OnlyTarget only(target);
      for (size_t position = 0; position < 600; ++position) {
        Gradient bad = good;
        bad.set(position, position % 2 == 0 ? std::numeric_limits<float>::infinity()
                                            : std::numeric_limits<float>::quiet_NaN());
        ASSERT_FALSE(sum_of_squares(bad.from(0), type, 600).finite) << target.name << position;
        ASSERT_TRUE(sum_of_squares(bad.from(0), type, position).finite) << target.name << position;
      }
    }
  }
}

}  // namespace
}  // namespace bottomless::optim
