#include "checkpoint/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace bottomless {
namespace {

template <class T>
uint64_t nonfinite_in(Dtype dtype, const std::vector<T>& values) {
  return count_nonfinite(dtype, std::as_bytes(std::span(values)));
}

TEST(Dtype, NamesLeadBackToTheirTypes) {
  std::set<std::string_view> names;
  for (size_t i = 0; i < kDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_named(name_of(dtype)), dtype);
    names.insert(name_of(dtype));
  }
  EXPECT_EQ(names.size(), kDtypes);
  EXPECT_EQ(dtype_named("f32"), std::nullopt);
  EXPECT_EQ(dtype_named(""), std::nullopt);
}

TEST(Dtype, BytesOfAShapeAreCountedOrRefused) {
  const auto bytes = [](std::vector<uint64_t> shape) { return bytes_of(Dtype::f32, shape); };
  EXPECT_EQ(bytes({}), 4u);
  EXPECT_EQ(bytes({3, 5}), 60u);
  EXPECT_EQ(bytes({3, 0, 5}), 0u);
  EXPECT_EQ(bytes({uint64_t{1} << 61}), uint64_t{1} << 63);
  EXPECT_EQ(bytes({uint64_t{1} << 62}), std::nullopt);
  EXPECT_EQ(bytes({uint64_t{1} << 40, uint64_t{1} << 40, 0}), std::nullopt) << "as the original";
}

TEST(Dtype, NonfiniteValuesAreCountedInEveryFloatingType) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  EXPECT_EQ(nonfinite_in<float>(Dtype::f32, {0, 1, kInfinity, -kInfinity, std::nanf(""), kMax}),
            3u);
  EXPECT_EQ(nonfinite_in<double>(Dtype::f64, {0, HUGE_VAL, std::nan(""), 1e300}), 2u);
  EXPECT_EQ(nonfinite_in<uint16_t>(Dtype::f16, {0x7C00, 0xFC00, 0x7E01, 0x7BFF, 0x3C00}), 3u);
  EXPECT_EQ(nonfinite_in<uint16_t>(Dtype::bf16, {0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x3F80}), 3u);
  EXPECT_EQ(nonfinite_in<uint8_t>(Dtype::f8_e5m2, {0x7C, 0xFC, 0x7F, 0x7B, 0x3C}), 3u);
  EXPECT_EQ(nonfinite_in<uint8_t>(Dtype::f8_e4m3, {0x7F, 0xFF, 0x7E, 0x78, 0xFE}), 2u);
  EXPECT_EQ(nonfinite_in<uint8_t>(Dtype::u8, {0x7F, 0xFF}), 0u);
  EXPECT_EQ(nonfinite_in<uint32_t>(Dtype::i32, {0x7F80'0000}), 0u);
}

TEST(Dtype, FloatingIsWhatCanBeNonfinite) {
  const std::vector<uint8_t> ones(8, 0xFF);
  for (size_t i = 0; i < kDtypes; ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(is_floating(dtype), nonfinite_in(dtype, ones) > 0) << name_of(dtype);
  }
}

}  // namespace
}  // namespace bottomless
