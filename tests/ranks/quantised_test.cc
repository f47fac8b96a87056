#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "optim/formats.h"
#include "ranks/network_format.h"
#include "support/random.h"

namespace bottomless {
namespace {

optim::Element number(Element element) {
  return element == Element::float32    ? optim::Element::float32
         : element == Element::bfloat16 ? optim::Element::bfloat16
                                        : optim::Element::float16;
}

std::vector<std::byte> stored(Element element, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * element_bytes(element));
  for (size_t i = 0; i < values.size(); ++i)
    optim::store_element(number(element), bytes.data(), i, values[i]);
  return bytes;
}

std::vector<float> loaded(Element element, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / element_bytes(element));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = optim::load_element(number(element), bytes.data(), i);
  return values;
}

std::vector<std::byte> there_and_back(Element element, const std::vector<std::byte>& plain) {
  std::vector<std::byte> encoded(encoded_bytes(plain.size(), element)), back(plain.size());
  encode(element, plain, encoded);
  decode(element, encoded, back);
  return back;
}

const Element kNumbers[] = {Element::float32, Element::bfloat16, Element::float16};

// What a type itself rounds, of a number.
float rounding(Element element) {
  return element == Element::float32    ? 1e-6f
         : element == Element::bfloat16 ? 1 / 256.0f
                                        : 1 / 2048.0f;
}

TEST(Quantised, ErrorIsSmallAgainstTheLargestOfTheSameScale) {
  Random random(1);
  BOTTOMLESS_TRACE_SEED(random);
  for (const Element element : kNumbers) {
    for (const size_t count : {size_t{1}, size_t{255}, size_t{256}, size_t{257}, size_t{5000}}) {
      std::vector<float> values(count);
      for (float& value : values) {
        const float size = std::exp(static_cast<float>(random.below(8)) - 4);
        value = size * (static_cast<float>(random.below(20001)) / 10000 - 1);
      }
      const std::vector<std::byte> plain = stored(element, values);
      values = loaded(element, plain);
      const std::vector<float> back = loaded(element, there_and_back(element, plain));
      for (size_t i = 0; i < count; ++i) {
        float largest = 0;
        const size_t first = i / kNumbersPerScale * kNumbersPerScale;
        for (size_t k = first; k < std::min(count, first + kNumbersPerScale); ++k)
          largest = std::max(largest, std::fabs(values[k]));
        ASSERT_LE(std::fabs(back[i] - values[i]), largest * (1 / 254.0f + rounding(element))) << i;
      }
    }
  }
}

TEST(Quantised, ZeroStaysZeroAndTheLargestStays) {
  for (const Element element : kNumbers) {
    const std::vector<float> values{0, -3, 0, 1.5};
    const std::vector<float> back =
        loaded(element, there_and_back(element, stored(element, values)));
    EXPECT_EQ(back[0], 0);
    EXPECT_NEAR(back[1], -3, 3 * rounding(element));
  }
}

TEST(Quantised, WhatIsNotFiniteStaysSoAndOthersAreUnharmed) {
  for (const Element element : kNumbers) {
    for (const float bad : {INFINITY, -INFINITY, static_cast<float>(NAN)}) {
      std::vector<float> values(600, 1);
      values[300] = bad;
      const std::vector<float> back =
          loaded(element, there_and_back(element, stored(element, values)));
      EXPECT_FALSE(std::isfinite(back[300]));
      EXPECT_NEAR(back[0], 1, rounding(element));
      EXPECT_NEAR(back[599], 1, rounding(element));
    }
  }
}

TEST(Quantised, TinyNumbersBecomeTinyNumbers) {
  for (const float tiny : {1e-45f, 1e-40f, 1e-38f, 3e-37f, 1e-36f, 1e-35f}) {
    const std::vector<float> values{0, tiny, -tiny, tiny / 2};
    const std::vector<float> back = loaded(
        Element::float32, there_and_back(Element::float32, stored(Element::float32, values)));
    for (size_t i = 0; i < values.size(); ++i)
      EXPECT_LE(std::fabs(back[i] - values[i]), 1.5e-36f) << tiny;
  }
}

TEST(Quantised, TakesABytePerNumberAndAScaleForEach256) {
  EXPECT_EQ(encoded_bytes(4 * 256, Element::float32), 256u + 4);
  EXPECT_EQ(encoded_bytes(2 * 257, Element::bfloat16), 257u + 8);
  EXPECT_EQ(encoded_bytes(0, Element::float16), 0u);
}

}  // namespace
}  // namespace bottomless
