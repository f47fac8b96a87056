// What an operation is about to overwrite is not fetched; unless it does so, the old content is still there.
#include <gtest/gtest.h>

#include <array>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

Need all_of(const std::byte* at, Bytes bytes = kBlock) {
  return {.address = at, .bytes = bytes, .access = Access::write, .overwritten = true};
}

class Overwrite : public testing::TestWithParam<Eviction> {
 protected:
  // A storage whose content lies below.
  std::byte* away(uint64_t key, Bytes bytes = kBlock) {
    std::byte* at = rig_.filled(bytes, key);
    rig_.push_out(at);
    return at;
  }
  Result<void> pin(Pins& pins, std::initializer_list<Need> needs) {
    return rig_.engine().pin(pins, {needs.begin(), needs.size()}, "a test");
  }
  Bytes read() const { return rig_.stats().read_bytes; }

  Rig rig_{{.eviction = GetParam()}};
};

TEST_P(Overwrite, FetchesNothing) {
  std::byte* at = away(1);
  const Bytes before = read();
  {
    Pins pins(rig_.engine());
    ASSERT_TRUE(pin(pins, {all_of(at)}).ok());
    write_pattern(at, kBlock, 2);
    pins.done();
  }
  EXPECT_EQ(read(), before);
  rig_.push_out(at);
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
}

TEST_P(Overwrite, ThatIsNotDoneLeavesTheOldContent) {
  std::byte* at = away(1);
  {
    Pins pins(rig_.engine());
    ASSERT_TRUE(pin(pins, {all_of(at)}).ok());
    write_pattern(at, kBlock / 2, 2);  // and then an exception
  }
  EXPECT_TRUE(rig_.holds(at, kBlock, 1));
}

TEST_P(Overwrite, OfAPartFetchesTheRest) {
  std::byte* at = away(1);
  Pins pins(rig_.engine());
  ASSERT_TRUE(pin(pins, {all_of(at, kBlock - 8)}).ok());
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
  pins.done();
}

TEST_P(Overwrite, OfSeveralBlocksFetchesOnlyThoseAtItsEnds) {
  std::byte* at = away(1, 3 * kBlock);
  const Bytes before = read();
  {
    Pins pins(rig_.engine());
    ASSERT_TRUE(pin(pins, {all_of(at + 8, 3 * kBlock - 16)}).ok());
    EXPECT_EQ(read() - before, 2 * kBlock);
    for (Bytes i = 8; i < 3 * kBlock - 8; ++i) at[i] = std::byte{7};
    pins.done();
  }
  rig_.push_out(at);
  Pins pins(rig_.engine());
  rig_.pin(pins, at, 3 * kBlock, Access::read);
  EXPECT_TRUE(continues_pattern(at, 8, 1, 0));
  EXPECT_EQ(at[8], std::byte{7});
  EXPECT_EQ(at[2 * kBlock], std::byte{7});
  EXPECT_TRUE(continues_pattern(at + 3 * kBlock - 8, 8, 1, 3 * kBlock - 8));
}

TEST_P(Overwrite, OfWhatIsAlsoReadFetchesIt) {
  std::byte* at = away(1);
  for (const bool read_first : {true, false}) {
    rig_.push_out(at);
    Pins pins(rig_.engine());
    const Need reading{.address = at + 100, .bytes = 8, .access = Access::read};
    const auto needs =
        read_first ? std::array{reading, all_of(at)} : std::array{all_of(at), reading};
    ASSERT_TRUE(rig_.engine().pin(pins, needs, "a test").ok());
    EXPECT_TRUE(has_pattern(at, kBlock, 1));
    pins.done();
  }
}

TEST_P(Overwrite, OfWhatIsHereChangesNothing) {
  std::byte* at = rig_.filled(kBlock, 1);
  Pins holding(rig_.engine());
  rig_.pin(holding, at, kBlock, Access::read);
  {
    Pins pins(rig_.engine());
    ASSERT_TRUE(pin(pins, {all_of(at)}).ok());
    EXPECT_TRUE(has_pattern(at, kBlock, 1));
  }
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
}

TEST_P(Overwrite, SurvivesAFreeBeforeItIsDone) {
  std::byte* at = away(1);
  Pins pins(rig_.engine());
  ASSERT_TRUE(pin(pins, {all_of(at)}).ok());
  rig_.free(at);
}

INSTANTIATE_TEST_SUITE_P(Each, Overwrite, testing::Values(Eviction::when_needed, Eviction::eagerly),
                         [](const auto& info) {
                           return info.param == Eviction::eagerly ? "eagerly" : "when_needed";
                         });

}  // namespace
}  // namespace bottomless
