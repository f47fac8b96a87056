// Memory of others that counts against the limit: it takes room from the heap and gives it back.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

Result<void> charge(Rig& rig, Bytes bytes, const Pins* pins = nullptr) {
  return rig.engine().charge(bytes, pins, "a test");
}

TEST(Charge, TakesRoomFromTheHeapAndIsCounted) {
  Rig rig;
  for (uint64_t i = 0; i < 3; ++i) rig.filled(kBlock, i);
  EXPECT_EQ(rig.resident(), 3 * kBlock);
  ASSERT_TRUE(charge(rig, 1_MiB).ok());
  EXPECT_EQ(rig.stats().charged_bytes, 1_MiB);
  EXPECT_LE(rig.resident() + rig.stats().overhead_bytes + 1_MiB, 2_MiB);
  EXPECT_EQ(rig.resident(), kBlock);
  rig.engine().discharge(1_MiB);
  EXPECT_EQ(rig.stats().charged_bytes, 0u);
}

TEST(Charge, SmallChargesFitIntoARoundedReserveWithoutEvictions) {
  Rig rig;
  for (uint64_t i = 0; i < 3; ++i) rig.filled(kBlock, i);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(charge(rig, 1_KiB).ok());
  EXPECT_EQ(rig.stats().charged_bytes, 100_KiB);
  EXPECT_EQ(rig.stats().evictions, 0u) << "448 KiB were free";
}

TEST(Charge, WhatIsDischargedCanBeAllocatedAgain) {
  Rig rig;
  for (int round = 0; round < 5; ++round) {
    ASSERT_TRUE(charge(rig, 1_MiB).ok());
    rig.engine().discharge(1_MiB);
    Pins pins(rig.engine());
    std::byte* at = rig.allocate_pinned(3 * kBlock, pins);
    rig.engine().free(at, &pins);
  }
}

TEST(Charge, WhatIsDischargedCanBePinnedAgain) {
  Rig rig;
  std::byte* at = rig.filled(3 * kBlock, 1);
  ASSERT_TRUE(charge(rig, 1_MiB).ok());
  rig.engine().discharge(1_MiB);
  Pins pins(rig.engine());
  const Result<void> pinned = rig.try_pin(pins, at, 3 * kBlock, Access::read);
  ASSERT_TRUE(pinned.ok()) << pinned.error().message;
  EXPECT_TRUE(has_pattern(at, 3 * kBlock, 1));
}

TEST(Charge, WhatIsDischargedComesBackToTheLastByteWhenItIsNeeded) {
  Rig rig({.limit = 2_MiB, .frames = {.large = 64_KiB, .small = 64_KiB}});
  std::byte* at = rig.allocate(4_MiB);
  const Bytes all = 2_MiB - rig.stats().overhead_bytes;
  ASSERT_TRUE(charge(rig, 100_KiB).ok());
  rig.engine().discharge(100_KiB);
  Pins pins(rig.engine());
  const Result<void> pinned = rig.try_pin(pins, at, all, Access::write);
  EXPECT_TRUE(pinned.ok()) << pinned.error().message;
}

TEST(Charge, ARefusedChargeLeavesEverythingAsItWas) {
  Rig rig;
  std::byte* at = rig.filled(3 * kBlock, 1);
  Pins pins(rig.engine());
  rig.pin(pins, at, 2 * kBlock, Access::read);
  const Result<void> refused = charge(rig, 1536_KiB, &pins);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::no_memory);
  EXPECT_EQ(rig.stats().charged_bytes, 0u);
  const Result<void> pinned = rig.try_pin(pins, at, 3 * kBlock, Access::read);
  ASSERT_TRUE(pinned.ok()) << pinned.error().message;
  EXPECT_TRUE(has_pattern(at, 3 * kBlock, 1));
}

TEST(Charge, MoreThanTheLimitIsRefusedWithNamesAndNumbers) {
  Rig rig;
  const Result<void> refused = rig.engine().charge(3_MiB, nullptr, "aten::ones");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::no_memory);
  EXPECT_NE(refused.error().message.find("aten::ones"), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("2 MiB"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(charge(rig, 1_MiB).ok());
}

TEST(Charge, PinnedBlocksAreNotTakenForIt) {
  Rig rig;
  Pins pins(rig.engine());
  std::byte* at = rig.allocate_pinned(2 * kBlock, pins);
  write_pattern(at, 2 * kBlock, 1);
  ASSERT_TRUE(charge(rig, 512_KiB, &pins).ok());
  EXPECT_FALSE(charge(rig, 1_MiB, &pins).ok());
  EXPECT_TRUE(has_pattern(at, 2 * kBlock, 1));
}

TEST(Charge, MoreDischargesThanChargesAreHarmless) {
  Rig rig;
  rig.engine().discharge(10_MiB);
  EXPECT_EQ(rig.stats().charged_bytes, 0u);
  Pins pins(rig.engine());
  rig.allocate_pinned(3 * kBlock, pins);
  EXPECT_FALSE(rig.engine().allocate(kBlock, Kind::other, &pins, "a test").ok())
      << "no room comes from nowhere";
}

// While one charge waits for blocks to leave, another that would fit into the rounding must not be granted first.
TEST(Charge, IsNotGrantedBeforeItsRoomIsThere) {
  Rig rig({.limit = 2_MiB, .frames = {.large = 64_KiB, .small = 64_KiB}});
  while (rig.resident() + rig.stats().overhead_bytes < 2_MiB)
    rig.filled(64_KiB, 1);  // full to the last byte
  ASSERT_EQ(rig.stats().evictions, 0u);
  rig.store().hold();
  std::thread large([&] { EXPECT_TRUE(charge(rig, 256_KiB - 50_KiB).ok()); });
  rig.store().wait_for_pending(1);
  std::atomic<bool> started = false;
  std::atomic<bool> finished = false;
  std::thread small([&] {
    started = true;
    EXPECT_TRUE(charge(rig, 40_KiB).ok());
    EXPECT_LE(rig.resident() + rig.stats().overhead_bytes + 40_KiB, 2_MiB)
        << "granted before the blocks had left";
    finished = true;
  });
  // Give it every chance to be granted too early.
  while (!started) std::this_thread::yield();
  for (int i = 0; i < 20000 && !finished; ++i) std::this_thread::yield();
  rig.store().release();
  small.join();
  large.join();
}

TEST(Charge, ManyThreadsTogetherNeverExceedTheLimit) {
  Rig rig({.limit = 2_MiB, .frames = {.large = 64_KiB, .small = 16_KiB}});
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 40; ++i) storages.push_back(rig.filled(128_KiB, i));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 400; ++i) {
        const Bytes bytes = (1 + (i * 7 + t * 3) % 40) * 8_KiB;
        ASSERT_TRUE(charge(rig, bytes).ok());
        rig.engine().discharge(bytes);
      }
    });
  }
  for (uint64_t i = 0; i < 400; ++i) {
    ASSERT_TRUE(rig.holds(storages[i % 40], 128_KiB, i % 40));
    const EngineStats stats = rig.stats();
    ASSERT_LE(stats.peak_bytes, stats.limit_bytes);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(rig.stats().charged_bytes, 0u);
  EXPECT_GT(rig.stats().evictions, 0u);
}

}  // namespace
}  // namespace bottomless
