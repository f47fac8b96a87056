// The public calls, one documented behaviour each. Three blocks of 512 KiB fit; see rig.h.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

TEST(EngineAllocate, WithPinsAllOfItIsResidentWritableAndStays) {
  Rig rig;
  Pins pins(rig.engine());
  std::byte* at = rig.allocate_pinned(2 * kBlock, pins);
  EXPECT_TRUE(rig.engine().contains(at));
  EXPECT_TRUE(is_writable(at));
  EXPECT_TRUE(is_writable(at + 2 * kBlock - 1));
  write_pattern(at, 2 * kBlock, 1);
  std::byte* a =
      rig.filled(kBlock, 2);  // the third block; and the next one must push it out, not ours
  std::byte* b = rig.filled(kBlock, 3);
  EXPECT_TRUE(has_pattern(at, 2 * kBlock, 1));
  EXPECT_FALSE(is_readable(a));
  EXPECT_TRUE(is_readable(b));
}

TEST(EngineAllocate, WithoutPinsNothingIsResident) {
  Rig rig;
  std::byte* at = rig.allocate(100 * kBlock);
  EXPECT_FALSE(is_readable(at));
  EXPECT_EQ(rig.resident(), 0u);
  rig.fill(at + 50 * kBlock, kBlock, 7);
  EXPECT_TRUE(rig.holds(at + 50 * kBlock, kBlock, 7));
  EXPECT_FALSE(is_readable(at));
}

TEST(EngineAllocate, AFreedStorageIsReusedAtItsAddressWithoutANewTransfer) {
  Rig rig;
  std::byte* first = rig.filled(kBlock, 1);
  rig.free(first);
  Pins pins(rig.engine());
  EXPECT_EQ(rig.allocate_pinned(kBlock, pins), first);
  EXPECT_TRUE(is_writable(first));
}

TEST(EngineAllocate, AReusedStorageThatNobodyPinsMayLeaveAndComeBack) {
  Rig rig;
  std::byte* first = rig.filled(kBlock, 1);
  rig.free(first);
  ASSERT_EQ(rig.allocate(kBlock), first);
  rig.push_out(first);
  rig.fill(first, kBlock, 5);
  rig.push_out(first);
  EXPECT_TRUE(rig.holds(first, kBlock, 5));
}

TEST(EngineAllocate, OddSizesKeepTheirLastByte) {
  Rig rig;
  for (const Bytes bytes :
       {Bytes{1}, Bytes{4097}, 64_KiB - 1, kBlock - 1, kBlock + 1, 2 * kBlock + 12345}) {
    std::byte* at = rig.filled(bytes, bytes);
    rig.push_out(at);
    rig.push_out(at + bytes - 1);
    EXPECT_TRUE(rig.holds(at, bytes, bytes)) << bytes;
    rig.free(at);
  }
}

TEST(EngineAllocate, StoragesMayExceedTheLimitManyTimes) {
  Rig rig;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 40; ++i) storages.push_back(rig.filled(kBlock, i));
  for (uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i));
  EXPECT_EQ(rig.engine().live_storages(), 40u);
}

TEST(EngineFree, GivesBackMemoryAndExtent) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  EXPECT_GT(rig.store().in_use(), 0u);
  rig.free(at);
  EXPECT_EQ(rig.engine().live_storages(), 0u);
  Pins all(rig.engine());
  rig.allocate_pinned(3 * kBlock, all);
}

TEST(EngineFree, WhatIsPinnedStaysUntilItIsReleased) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  Pins pins(rig.engine());
  rig.pin(pins, at, kBlock, Access::write);
  rig.free(at);
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
  EXPECT_EQ(rig.engine().live_storages(), 1u);
  for (uint64_t i = 0; i < 6; ++i) rig.filled(kBlock, i);
  EXPECT_TRUE(has_pattern(at, kBlock, 1)) << "its memory was given to somebody else";
  pins.release();
  EXPECT_EQ(rig.engine().live_storages(), 6u);
}

TEST(EngineFree, WhatTheOperationAllocatedItselfGoesAtOnce) {
  Rig rig;
  std::byte* input = rig.filled(kBlock, 1);
  Pins pins(rig.engine());
  rig.pin(pins, input, kBlock, Access::read);
  std::byte* temporary = rig.allocate_pinned(2 * kBlock, pins);
  rig.engine().free(temporary, &pins);
  EXPECT_EQ(rig.engine().live_storages(), 1u);
  rig.allocate_pinned(2 * kBlock, pins);  // only fits because the temporary has gone
  EXPECT_TRUE(has_pattern(input, kBlock, 1));
}

TEST(EngineFree, WhatAnotherOperationAllocatedStaysThoughItsPinsLayAtTheSameAddress) {
  Rig rig;
  std::optional<Pins> pins(std::in_place, rig.engine());
  std::byte* at = rig.allocate_pinned(kBlock, *pins);
  write_pattern(at, kBlock, 1);
  pins.emplace(rig.engine());  // the next operation; most live at the same place of the same stack
  rig.pin(*pins, at, kBlock, Access::read);
  rig.engine().free(at, &*pins);
  EXPECT_EQ(rig.engine().live_storages(), 1u) << "an input was freed under the operation";
  pins.reset();
  EXPECT_EQ(rig.engine().live_storages(), 0u);
}

TEST(EnginePins, KeepTheirOwnershipWhenMoved) {
  Rig rig;
  Pins first(rig.engine());
  std::byte* at = rig.allocate_pinned(kBlock, first);
  write_pattern(at, kBlock, 1);
  {
    Pins second(std::move(first));
    EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): that is the question
    EXPECT_FALSE(second.empty());
    for (uint64_t i = 0; i < 6; ++i) rig.filled(kBlock, i);
    EXPECT_TRUE(has_pattern(at, kBlock, 1));
    rig.engine().free(at, &second);
    EXPECT_EQ(rig.engine().live_storages(), 6u)
        << "the operation allocated it, wherever its pins are now";
  }
}

TEST(EnginePin, BringsBackTheContent) {
  Rig rig;
  std::byte* at = rig.filled(2 * kBlock, 1);
  rig.push_out(at);
  rig.push_out(at + kBlock);
  Pins pins(rig.engine());
  rig.pin(pins, at, 2 * kBlock, Access::read);
  EXPECT_TRUE(has_pattern(at, 2 * kBlock, 1));
}

TEST(EnginePin, TakesOnlyTheBlocksOfTheRange) {
  Rig rig;
  std::byte* at = rig.allocate(10 * kBlock);
  for (uint64_t i = 0; i < 10; ++i) rig.fill(at + i * kBlock, kBlock, i);
  Pins pins(rig.engine());
  rig.pin(pins, at + kBlock - 1, 2,
          Access::read);  // the last byte of one block and the first of the next
  EXPECT_TRUE(has_pattern(at, kBlock, 0));
  EXPECT_TRUE(has_pattern(at + kBlock, kBlock, 1));
  Pins other(rig.engine());
  rig.pin(other, at + 5 * kBlock, kBlock,
          Access::read);  // there is room for one more, so no more than two were taken
  EXPECT_TRUE(has_pattern(at + 5 * kBlock, kBlock, 5));
}

TEST(EnginePin, PassesOverAddressesOfOthersAndEmptyRanges) {
  Rig rig;
  int mine = 0;
  Pins pins(rig.engine());
  rig.pin(pins, &mine, sizeof mine, Access::write);
  rig.pin(pins, nullptr, 10, Access::read);
  std::byte* at = rig.allocate(kBlock);
  rig.pin(pins, at, 0, Access::read);
  EXPECT_TRUE(pins.empty());
  EXPECT_FALSE(rig.engine().contains(&mine));
}

TEST(EnginePin, ABlockStaysUntilItsLastPinIsReleased) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  Pins first(rig.engine());
  Pins second(rig.engine());
  rig.pin(first, at, kBlock, Access::read);
  rig.pin(second, at, kBlock, Access::read);
  rig.pin(second, at, kBlock, Access::read);
  first.release();
  for (uint64_t i = 0; i < 6; ++i) rig.filled(kBlock, i);
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
  second.release();
  second.release();
  rig.push_out(at);
}

TEST(EnginePin, SeveralNeedsOfOneCallMayNameTheSameBlock) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  Pins pins(rig.engine());
  const std::vector<Need> needs{
      {at, 10, Access::read}, {at + 100, 10, Access::write}, {at, kBlock, Access::read}};
  ASSERT_TRUE(rig.engine().pin(pins, needs, "a test").ok());
  EXPECT_TRUE(is_writable(at));
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
}

TEST(EngineTouch, MakesABlockAccessibleAndKnowsWhatIsNotOurs) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  int mine = 0;
  EXPECT_FALSE(rig.engine().touch(&mine, Access::read).value());
  EXPECT_EQ(rig.stats().faults, 0u);
  EXPECT_TRUE(rig.engine().touch(at + 77, Access::read).value());
  EXPECT_TRUE(is_readable(at));
  EXPECT_FALSE(is_writable(at)) << "a clean block is read-only, so that no write is lost";
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
  EXPECT_TRUE(rig.engine().touch(at, Access::write).value());
  EXPECT_TRUE(is_writable(at));
  EXPECT_EQ(rig.stats().faults, 2u);
}

TEST(EngineTouch, FirstTouchOfAFreshStorageGivesMemory) {
  Rig rig;
  std::byte* at = rig.allocate(kBlock);
  EXPECT_TRUE(rig.engine().touch(at, Access::write).value());
  write_pattern(at, kBlock, 3);
  rig.push_out(at);
  EXPECT_TRUE(rig.holds(at, kBlock, 3));
}

TEST(EngineDeathTest, FreeingTwiceStopsTheProcess) {
  EXPECT_DEATH(
      {
        Rig rig;
        std::byte* at = rig.allocate(kBlock);
        rig.free(at);
        rig.free(at);
      },
      "freed twice");
}

TEST(Settle, AStorageFreedWhileItIsWrittenIsGoneAfterwards) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.store().hold();
  std::thread making_room([&] { rig.filled(3 * kBlock, 2); });
  rig.store().wait_for_pending(1);
  rig.free(at);
  EXPECT_GE(rig.engine().live_storages(), 1u) << "the write still uses its memory";
  rig.store().release();
  making_room.join();
  rig.engine().wait_for_io();
  EXPECT_EQ(rig.engine().live_storages(), 1u);
}

}  // namespace
}  // namespace bottomless
