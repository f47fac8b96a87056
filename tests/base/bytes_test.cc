#include <bottomless/bytes.h>
#include <gtest/gtest.h>

#include <string>

#include "base/at_least.h"
#include "support/random.h"

namespace bottomless {
namespace {

Bytes parsed(std::string_view text) {
  const Result<Bytes> bytes = parse_bytes(text);
  EXPECT_TRUE(bytes.ok()) << "'" << text << "': " << bytes.error().message;
  return bytes.ok() ? bytes.value() : ~Bytes{0};
}

TEST(ParseBytes, PlainNumberCountsBytes) {
  EXPECT_EQ(parsed("0"), 0u);
  EXPECT_EQ(parsed("1"), 1u);
  EXPECT_EQ(parsed("4096"), 4096u);
  EXPECT_EQ(parsed("17B"), 17u);
}

TEST(ParseBytes, BinaryUnitsArePowersOf1024) {
  EXPECT_EQ(parsed("1KiB"), 1_KiB);
  EXPECT_EQ(parsed("512MiB"), 512_MiB);
  EXPECT_EQ(parsed("4GiB"), 4_GiB);
  EXPECT_EQ(parsed("16TiB"), 16_TiB);
}

TEST(ParseBytes, DecimalUnitsArePowersOf1000) {
  EXPECT_EQ(parsed("1KB"), 1000u);
  EXPECT_EQ(parsed("2MB"), 2'000'000u);
  EXPECT_EQ(parsed("3GB"), 3'000'000'000u);
  EXPECT_EQ(parsed("1TB"), 1'000'000'000'000u);
}

TEST(ParseBytes, CaseDoesNotMatter) {
  EXPECT_EQ(parsed("4gib"), 4_GiB);
  EXPECT_EQ(parsed("4GIB"), 4_GiB);
  EXPECT_EQ(parsed("4gB"), 4'000'000'000u);
}

TEST(ParseBytes, FractionsRoundToTheNearestByte) {
  EXPECT_EQ(parsed("1.5GiB"), 1536_MiB);
  EXPECT_EQ(parsed("0.5KiB"), 512u);
  EXPECT_EQ(parsed(".25MiB"), 256_KiB);
  EXPECT_EQ(parsed("0.3"), 0u);
  EXPECT_EQ(parsed("0.7"), 1u);
}

TEST(ParseBytes, SpacesMayStandBeforeTheUnitOnly) {
  EXPECT_EQ(parsed("4 GiB"), 4_GiB);
  EXPECT_EQ(parsed("4   MB"), 4'000'000u);
  EXPECT_FALSE(parse_bytes(" 4GiB").ok());
  EXPECT_FALSE(parse_bytes("4GiB ").ok());
  EXPECT_FALSE(parse_bytes("4 Gi B").ok());
}

TEST(ParseBytes, GarbageIsRefusedWithTheTextAndAnExample) {
  for (const char* text :
       {"",    " ",    "GiB",    "four",  "4XiB", "4G",  "4GiBs", "-1",    "-1GiB", "+4",
        "1e9", "0x10", "1,5GiB", "1.2.3", "nan",  "inf", "infB",  "4GiB4", ".",     "--4"}) {
    const Result<Bytes> bytes = parse_bytes(text);
    ASSERT_FALSE(bytes.ok()) << "'" << text << "' was read as " << bytes.value();
    EXPECT_EQ(bytes.error().code, Code::invalid_argument) << text;
    EXPECT_NE(bytes.error().message.find("'" + std::string(text) + "'"), std::string::npos)
        << bytes.error().message;
    EXPECT_NE(bytes.error().message.find("4GiB"), std::string::npos) << bytes.error().message;
  }
}

TEST(ParseBytes, EmbeddedZeroIsGarbage) {
  EXPECT_FALSE(parse_bytes(std::string_view("4\0GiB", 5)).ok());
}

TEST(ParseBytes, WhatDoesNotFitIsRefused) {
  EXPECT_FALSE(parse_bytes("9223372036854775808").ok());  // 2^63
  EXPECT_FALSE(parse_bytes("8388608TiB").ok());           // 2^63
  EXPECT_EQ(parsed("8388607TiB"), 8388607_TiB);
  EXPECT_FALSE(parse_bytes(std::string(400, '9')).ok());
  EXPECT_FALSE(parse_bytes(std::string(400, '9') + "TiB").ok());
}

TEST(FormatBytes, UsesTheLargestUnitThatKeepsItAtOrAboveOne) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(768), "768 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1 KiB");
  EXPECT_EQ(format_bytes(1536_MiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(64_MiB), "64 MiB");
  EXPECT_EQ(format_bytes(3_TiB), "3 TiB");
  EXPECT_EQ(format_bytes(5000_TiB), "5000 TiB");
}

TEST(FormatBytes, RoundTripsThroughParseWithinItsTwoDigits) {
  Random random(11);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 2000; ++i) {
    const Bytes bytes = random.next() >> random.between(2, 63);
    const auto back = static_cast<double>(parsed(format_bytes(bytes)));
    EXPECT_NEAR(back, static_cast<double>(bytes), 0.006 * static_cast<double>(bytes))
        << format_bytes(bytes);
  }
}

TEST(FormatAtLeast, IsNeverRoundedDown) {
  Random random(5);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 10'000; ++i) {
    const Bytes bytes = random.below(Bytes{1} << (1 + random.below(50)));
    const Bytes typed = parse_bytes(format_at_least(bytes)).value();
    EXPECT_GE(typed, bytes);
    EXPECT_LE(typed - bytes, bytes / 50) << format_at_least(bytes);
  }
  EXPECT_EQ(format_at_least(12_MiB), "12 MiB");
  EXPECT_EQ(format_at_least(9_MiB + 526_KiB), "9.52 MiB");
}

}  // namespace
}  // namespace bottomless
