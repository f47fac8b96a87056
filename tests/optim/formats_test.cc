#include "optim/formats.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "support/random.h"

namespace bottomless::optim {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint16_t kSign = 0x8000;

struct Format {
  const char* name;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
  uint16_t infinity;
  double beyond;  // what would come after the largest finite number
};
const Format kBfloat16{"bfloat16", bfloat16_to_float32,
                       static_cast<uint16_t (*)(float)>(float32_to_bfloat16), 0x7F80, 0x1p128};
const Format kFloat16{"float16", float16_to_float32, float32_to_float16, 0x7C00, 65536};

class Formats : public testing::TestWithParam<Format> {
 protected:
  // As if there were no largest number.
  static double extended(uint16_t magnitude) {
    const Format& format = GetParam();
    return magnitude == format.infinity ? format.beyond : format.widen(magnitude);
  }
};

TEST_P(Formats, EveryNumberComesBack) {
  const Format& format = GetParam();
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = format.widen(narrow);
    if ((narrow & 0x7FFF) > format.infinity) {
      EXPECT_TRUE(std::isnan(wide)) << bits;
      EXPECT_TRUE(std::isnan(format.widen(format.narrow(wide)))) << bits;
    } else {
      EXPECT_EQ(format.narrow(wide), narrow) << bits;
      EXPECT_EQ(std::isinf(wide), (narrow & 0x7FFF) == format.infinity) << bits;
    }
  }
}

TEST_P(Formats, NumbersRise) {
  for (uint16_t bits = 0; bits < GetParam().infinity; ++bits)
    EXPECT_LT(GetParam().widen(bits), GetParam().widen(bits + 1));
}

TEST_P(Formats, TheNearestIsChosenAndOfTwoTheEvenOne) {
  Random random(301);
  BOTTOMLESS_TRACE_SEED(random);
  const Format& format = GetParam();
  for (int round = 0; round < 200'000; ++round) {
    // Between two neighbours, often right in the middle or just beside it.
    const auto below = static_cast<uint16_t>(random.below(format.infinity));
    const double low = extended(below), high = extended(below + 1);
    const double middle = (low + high) / 2;
    auto value = static_cast<float>(
        low + (high - low) * static_cast<double>(random.below(1 << 20)) / (1 << 20));
    if (random.one_in(2)) {
      value = static_cast<float>(middle);
      if (random.one_in(3)) value = std::nextafter(value, kInfinity);
      if (random.one_in(3)) value = std::nextafter(value, 0.0f);
    }
    const bool takes_upper = value > middle || (value == middle && below % 2 == 1);
    const uint16_t expected = takes_upper ? below + 1 : below;
    ASSERT_EQ(format.narrow(value), expected) << value;
    ASSERT_EQ(format.narrow(-value), expected | kSign) << value;
  }
}

TEST_P(Formats, WhatIsTooLargeBecomesInfiniteAndWhatIsTooSmallZero) {
  const Format& format = GetParam();
  EXPECT_EQ(format.narrow(kInfinity), format.infinity);
  EXPECT_EQ(format.narrow(-kInfinity), format.infinity | kSign);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), format.infinity);
  EXPECT_EQ(format.narrow(0.0f), 0);
  EXPECT_EQ(format.narrow(-0.0f), kSign);
  EXPECT_EQ(format.narrow(std::numeric_limits<float>::denorm_min()), 0);
}

TEST_P(Formats, EveryNanStaysNan) {
  for (const uint32_t bits :
       {0x7F800001u, 0x7F80FFFFu, 0x7FFFFFFFu, 0xFFFFFFFFu, 0xFFC00000u, 0x7FA00000u})
    EXPECT_TRUE(std::isnan(GetParam().widen(GetParam().narrow(std::bit_cast<float>(bits)))))
        << bits;
}

INSTANTIATE_TEST_SUITE_P(Each, Formats, testing::Values(kBfloat16, kFloat16),
                         [](const auto& info) { return info.param.name; });

TEST(Float16, HasTheValuesOfTheStandard) {
  EXPECT_EQ(float16_to_float32(0x3C00), 1.0f);
  EXPECT_EQ(float16_to_float32(0xC000), -2.0f);
  EXPECT_EQ(float16_to_float32(0x7BFF), 65504.0f);
  EXPECT_EQ(float16_to_float32(0x0400), 0x1p-14f);
  EXPECT_EQ(float16_to_float32(0x0001), 0x1p-24f);
  EXPECT_EQ(float16_to_float32(0x3555), 0.333251953125f);
  EXPECT_EQ(float32_to_float16(65519.99f), 0x7BFF);
  EXPECT_EQ(float32_to_float16(65520.0f), 0x7C00);
  EXPECT_EQ(float32_to_float16(0x1p-25f), 0);
  EXPECT_EQ(float32_to_float16(0x1.000002p-25f), 1);
}

TEST(StochasticRounding, IsRightOnAverage) {
  Random random(302);
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 20; ++round) {
    const auto value = static_cast<float>(random.below(1'000'000)) / 1000 - 500;
    double sum = 0;
    for (uint32_t noise = 0; noise <= 0xFFFF; ++noise)
      sum += bfloat16_to_float32(float32_to_bfloat16(value, static_cast<uint16_t>(noise)));
    EXPECT_EQ(sum / 0x10000, value);
  }
}

TEST(StochasticRounding, LeavesWhatFitsAndWhatIsNotFinite) {
  for (const float value : {0.0f, 1.5f, -3.0f, kInfinity, -kInfinity})
    EXPECT_EQ(bfloat16_to_float32(float32_to_bfloat16(value, 0xFFFF)), value);
  EXPECT_TRUE(std::isnan(
      bfloat16_to_float32(float32_to_bfloat16(std::bit_cast<float>(0x7FFFFFFFu), 0xFFFF))));
}

TEST(StochasticRounding, HasNoiseThatIsUniformAndUncorrelated) {
  constexpr int kSteps = 4000;
  constexpr size_t kIndices = 256;
  double sum = 0, squares = 0, over_steps = 0, over_indices = 0, over_moments = 0;
  const auto noise = [](Moment moment, uint64_t step, size_t index) {
    return (rounding_noise(moment, step, index) + 0.5) / 0x10000 - 0.5;
  };
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (size_t index = 0; index < kIndices; ++index) {
      const double here = noise(Moment::first, step, index);
      sum += here;
      squares += here * here;
      over_steps += here * noise(Moment::first, step + 1, index);
      over_indices += here * noise(Moment::first, step, index + 1);
      over_moments += here * noise(Moment::second, step, index);
    }
  }
  const double count = 1.0 * kSteps * kIndices;
  // Five standard deviations.
  EXPECT_NEAR(sum / count, 0, 5 / std::sqrt(12 * count));
  EXPECT_NEAR(squares / count, 1.0 / 12, 5 / std::sqrt(180 * count));
  for (const double correlation : {over_steps, over_indices, over_moments})
    EXPECT_NEAR(correlation / count, 0, 5.0 / 12 / std::sqrt(count));
}

}  // namespace
}  // namespace bottomless::optim
