// Eviction::eagerly, the hostile mode for tests: what nobody pins has left, and what it left behind is poison.
#include <gtest/gtest.h>

#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;
const RigOptions kEager{.eviction = Eviction::eagerly};

TEST(Eagerly, ABlockLeavesAsSoonAsNobodyPinsIt) {
  Rig rig(kEager);
  std::byte* at = rig.filled(kBlock, 1);
  EXPECT_FALSE(is_readable(at)) << "a stale pointer must fault at once";
  EXPECT_EQ(rig.resident(), 0u);
  EXPECT_TRUE(rig.holds(at, kBlock, 1));
  EXPECT_FALSE(is_readable(at));
}

TEST(Eagerly, WhatIsStillPinnedStays) {
  Rig rig(kEager);
  std::byte* at = rig.filled(kBlock, 1);
  Pins first(rig.engine());
  Pins second(rig.engine());
  rig.pin(first, at, kBlock, Access::read);
  rig.pin(second, at, kBlock, Access::read);
  first.release();
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
  second.release();
  EXPECT_FALSE(is_readable(at));
}

TEST(Eagerly, ATouchedBlockStaysForTheAccessToCome) {
  Rig rig(kEager);
  std::byte* at = rig.filled(kBlock, 1);
  ASSERT_TRUE(rig.engine().touch(at, Access::write).value());
  ASSERT_TRUE(is_writable(at));
  write_pattern(at, kBlock, 2);
  std::byte* other = rig.filled(kBlock, 3);  // its release evicts all that is idle
  EXPECT_FALSE(is_readable(at));
  EXPECT_FALSE(is_readable(other));
  EXPECT_TRUE(rig.holds(at, kBlock, 2));
}

TEST(Eagerly, FreshMemoryIsPoisonNotYesterdaysData) {
  Rig rig(kEager);
  for (uint64_t i = 0; i < 4; ++i) rig.free(rig.filled(kBlock, i));
  Pins pins(rig.engine());
  std::byte* at = rig.allocate_pinned(kBlock, pins);
  for (Bytes i = 0; i < kBlock; i += 64) {
    ASSERT_TRUE(at[i] == std::byte{0xFF} || at[i] == std::byte{0})
        << "frames come from the kernel or the poisoner";
  }
}

TEST(Eagerly, AFullStoreKeepsBlocksResident) {
  RigOptions options = kEager;
  options.store.capacity = kBlock;
  Rig rig(options);
  std::byte* a = rig.filled(kBlock, 1);
  std::byte* b = rig.filled(kBlock, 2);
  EXPECT_FALSE(is_readable(a));
  EXPECT_TRUE(is_readable(b)) << "it could not leave";
  EXPECT_TRUE(rig.holds(a, kBlock, 1));
  EXPECT_TRUE(rig.holds(b, kBlock, 2));
}

}  // namespace
}  // namespace bottomless
