#include "optim/quantised.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/random.h"

namespace bottomless::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kScales[] = {1.0f, 0.3f, 1e-3f, 1e-30f, 1e-44f, 7e20f, 3.4e38f};

// Products in float32, and bits that are shifted away, add this much.
constexpr double kArithmetic = 1e-6;

// All shares of the largest down to 2^-`exponents`, with scales of every place between two powers of two.
template <class Check>
void for_shares(Random& random, uint64_t exponents, Check check) {
  for (int round = 0; round < 300'000; ++round) {
    const double share = std::exp2(-static_cast<double>(random.below(exponents * 1000)) / 1000);
    const auto scale =
        static_cast<float>(std::exp2(static_cast<double>(random.below(4000)) / 1000));
    check(static_cast<float>(share * scale), scale);
  }
}

TEST(Quantised, FirstMomentIsAsAccurateAsTheHeaderSays) {
  Random random(401);
  BOTTOMLESS_TRACE_SEED(random);
  double worst = 0, worst_of_largest = 0, at_a_hundredth = 0;
  for_shares(random, 20, [&](float value, float scale) {
    const double decoded = decode_first(encode_first(value, scale), scale);
    const double error = std::fabs(decoded - value), x = 127 * std::sqrt(value / scale);
    if (x > 4) worst = std::max(worst, error / value * x);
    worst_of_largest = std::max(worst_of_largest, error / scale);
    if (std::fabs(x - 12.7) < 0.1) at_a_hundredth = std::max(at_a_hundredth, error / value);
    EXPECT_EQ(decode_first(encode_first(-value, scale), scale), -decoded);
    // Where the pseudo-root is most above the root, for the value or for the scale.
    if (x < 0.5 / 1.061 - 1e-4 || x > 0.5 * 1.061 + 1e-4) {
      EXPECT_EQ(decoded != 0, x > 0.5) << value << " of " << scale;
    }
  });
  std::printf("m: off by %.3f / x, %.4f of the largest, %.3f at a hundredth\n", worst,
              worst_of_largest, at_a_hundredth);
  EXPECT_LE(worst, 1.6);
  EXPECT_LE(worst_of_largest, 0.012);
  EXPECT_LE(at_a_hundredth, 0.125);
}

TEST(Quantised, RootOfTheSecondMomentIsAsAccurateAsTheHeaderSays) {
  Random random(402);
  BOTTOMLESS_TRACE_SEED(random);
  double worst = 0, at_a_hundredth = 0, smallest = 1;
  for_shares(random, 40, [&](float value, float scale) {
    const double root = std::sqrt(static_cast<double>(value));
    const double decoded =
        std::sqrt(static_cast<double>(decode_second(encode_second(value, scale), scale)));
    const double error = std::fabs(decoded - root) / root;
    const double y = 255 * std::pow(value / scale, 0.25);
    if (y > 8) worst = std::max(worst, error * y);
    if (std::fabs(y - 25.5) < 0.1) at_a_hundredth = std::max(at_a_hundredth, error);
    smallest = std::min(smallest, decoded / std::sqrt(scale));
  });
  std::printf("sqrt(v): off by %.3f / y, %.3f at a hundredth, at least 1/%.0f\n", worst,
              at_a_hundredth, 1 / smallest);
  EXPECT_LE(worst, 1.8);
  EXPECT_LE(at_a_hundredth, 0.07);
  EXPECT_NEAR(1 / smallest, 65025, 8000);
}

TEST(Quantised, EveryCodeComesBack) {
  for (const float scale : kScales) {
    for (int code = -127; code <= 127; ++code)
      EXPECT_EQ(encode_first(decode_first(static_cast<int8_t>(code), scale), scale), code) << scale;
    for (int code = 0; code <= 255; ++code)
      EXPECT_EQ(encode_second(decode_second(static_cast<uint8_t>(code), scale), scale), code)
          << scale;
  }
}

TEST(Quantised, TheLargestOfABlockComesBack) {
  for (const float scale : kScales) {
    if (scale >= kFirstCodes.smallest_scale) {
      for (const uint16_t noise : {0, 0x8000, 0xFFFF})  // never beyond the last code
        EXPECT_NEAR(encode_first(scale, scale, noise), 127, noise == 0 ? 1 : 0);
      EXPECT_EQ(encode_first(-scale, scale), -127);
      EXPECT_NEAR(decode_first(127, scale), scale, kArithmetic * scale);
      EXPECT_NEAR(decode_first(-127, scale), -scale, kArithmetic * scale);
    }
    if (scale >= kSecondCodes.smallest_scale) {
      for (const uint16_t noise : {0, 0x8000, 0xFFFF})
        EXPECT_NEAR(encode_second(scale, scale, noise), 255, noise == 0 ? 1 : 0);
      EXPECT_NEAR(decode_second(255, scale), scale, kArithmetic * scale);
    }
  }
}

TEST(Quantised, ASmallScaleCountsAsTheSmallest) {
  const float first = kFirstCodes.smallest_scale, second = kSecondCodes.smallest_scale;
  EXPECT_EQ(encode_first(first / 4, first / 4), encode_first(first / 4, first));
  EXPECT_EQ(decode_first(63, first / 4), decode_first(63, first));
  EXPECT_EQ(encode_second(second / 16, second / 16), encode_second(second / 16, second));
  EXPECT_EQ(decode_second(100, second / 16), decode_second(100, second));
}

TEST(Quantised, ASecondMomentThatIsNotZeroNeverBecomesZero) {
  for (const float scale : kScales) EXPECT_GE(encode_second(kTiny, scale), 1) << scale;
  EXPECT_EQ(encode_second(0, 1), 0);
  EXPECT_GT(decode_second(1, kTiny), 0);
}

TEST(Quantised, ZerosStayZeros) {
  EXPECT_EQ(encode_first(0, 0), 0);
  EXPECT_EQ(encode_first(-0.0f, 1), 0);
  EXPECT_EQ(encode_second(0, 0), 0);
  EXPECT_EQ(decode_first(0, 0), 0);
  EXPECT_EQ(decode_second(0, 0), 0);
}

TEST(Quantised, ScaleIsTheLargestMagnitude) {
  const std::vector<float> values{1, -5, 3, kNan, -kInfinity};
  EXPECT_EQ(block_scale(values.data(), 0), 0);
  EXPECT_EQ(block_scale(values.data(), 1), 1);
  EXPECT_EQ(block_scale(values.data(), 3), 5);
  EXPECT_EQ(block_scale(values.data(), 4), kInfinity);
  EXPECT_EQ(block_scale(values.data() + 4, 1), kInfinity);
}

TEST(Quantised, WhatIsNotFiniteStaysVisible) {
  const auto first = [](float value) {
    return decode_first(encode_first(value, kInfinity), kInfinity);
  };
  EXPECT_EQ(first(kInfinity), kInfinity);
  EXPECT_EQ(first(-kInfinity), -kInfinity);
  EXPECT_EQ(first(kNan), kInfinity);
  EXPECT_EQ(first(3), 0);
  EXPECT_EQ(first(0), 0);
  const auto second = [](float value) {
    return decode_second(encode_second(value, kInfinity), kInfinity);
  };
  EXPECT_EQ(second(kInfinity), kInfinity);
  EXPECT_EQ(second(kNan), kInfinity);
  EXPECT_EQ(second(3), kInfinity);
  EXPECT_EQ(second(0), 0);
}

}  // namespace
}  // namespace bottomless::optim
