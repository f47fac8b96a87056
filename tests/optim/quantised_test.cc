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

// Roots and products in float32 add this much.
constexpr double kArithmetic = 1e-6;

TEST(Quantised, FirstMomentIsAsAccurateAsTheHeaderSays) {
  Random random(401);
  BOTTOMLESS_TRACE_SEED(random);
  double worst = 0;
  for (int round = 0; round < 300'000; ++round) {
    const double share = std::exp2(-static_cast<double>(random.below(20'000)) / 1000);
    const float scale = 0.37f;
    const auto value = static_cast<float>(share * scale);
    const double decoded = decode_first(encode_first(value, scale), scale);
    const double error = std::fabs(decoded - value);
    const double x = 127 * std::sqrt(value / scale);
    EXPECT_LE(error / value, (x + 0.25) / (x * x) + kArithmetic) << value;
    worst = std::max(worst, error / scale);
    EXPECT_EQ(decode_first(encode_first(-value, scale), scale), -decoded);
    if (std::fabs(x - 0.5) > 1e-4) {
      EXPECT_EQ(decoded != 0, x > 0.5) << value;
    }
  }
  EXPECT_LE(worst, 0.0079);
}

TEST(Quantised, RootOfTheSecondMomentIsAsAccurateAsTheHeaderSays) {
  Random random(402);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 300'000; ++round) {
    const double share = std::exp2(-static_cast<double>(random.below(40'000)) / 1000);
    const float scale = 0.37f;
    const auto value = static_cast<float>(share * scale);
    const double root = std::sqrt(static_cast<double>(value));
    const double decoded =
        std::sqrt(static_cast<double>(decode_second(encode_second(value, scale), scale)));
    const double y = 255 * std::pow(value / scale, 0.25);
    if (y >= 1) {
      EXPECT_LE(std::fabs(decoded - root) / root, (y + 0.25) / (y * y) + kArithmetic) << value;
    } else {
      EXPECT_NEAR(decoded, std::sqrt(scale) / 65025, kArithmetic * std::sqrt(scale)) << value;
    }
  }
}

TEST(Quantised, ErrorsAtTheMarksOfTheHeader) {
  const auto bound = [](double code) { return (code + 0.25) / (code * code); };
  EXPECT_LE(bound(127), 0.008);
  EXPECT_LE(bound(12.7), 0.081);
  EXPECT_LE(bound(255), 0.004);
  EXPECT_LE(bound(25.5), 0.04);
}

TEST(Quantised, EveryCodeComesBack) {
  for (const float scale : kScales) {
    for (int code = -127; code <= 127; ++code) {
      const float value = decode_first(static_cast<int8_t>(code), scale);
      // Denormals have too few bits for that.
      if (scale > 1e-33f) {
        EXPECT_EQ(encode_first(value, scale), code) << scale;
      }
    }
    for (int code = 0; code <= 255; ++code) {
      const float value = decode_second(static_cast<uint8_t>(code), scale);
      if (scale > 1e-25f) {
        EXPECT_EQ(encode_second(value, scale), code) << scale;
      }
    }
  }
}

TEST(Quantised, TheLargestOfABlockComesBack) {
  for (const float scale : kScales) {
    EXPECT_EQ(encode_first(scale, scale), 127);
    EXPECT_EQ(encode_first(-scale, scale), -127);
    EXPECT_EQ(encode_second(scale, scale), 255);
    const double rounding = std::max<double>(kArithmetic * scale, kTiny);
    EXPECT_NEAR(decode_first(127, scale), scale, rounding);
    EXPECT_NEAR(decode_first(-127, scale), -scale, rounding);
    EXPECT_NEAR(decode_second(255, scale), scale, rounding);
  }
}

TEST(Quantised, ASecondMomentThatIsNotZeroNeverBecomesZero) {
  for (const float scale : kScales) EXPECT_GE(encode_second(kTiny, scale), 1) << scale;
  EXPECT_EQ(encode_second(0, 1), 0);
  EXPECT_GT(decode_second(1, 0x1p-117f), 0);
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
