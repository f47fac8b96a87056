#include <gtest/gtest.h>

#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

TEST(EngineStats, StartAtTheLimitAndTheOverhead) {
  Rig rig({.fixed_overhead = 100_KiB});
  const EngineStats stats = rig.stats();
  EXPECT_EQ(stats.limit_bytes, 2_MiB);
  EXPECT_GE(stats.overhead_bytes, 100_KiB);
  EXPECT_EQ(stats.peak_bytes, stats.overhead_bytes);
  EXPECT_EQ(stats.evictions, 0u);
  EXPECT_EQ(stats.live_storages, 0u);
}

TEST(EngineStats, TransfersAreCountedInBytes) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  const EngineStats out = rig.stats();
  EXPECT_GE(out.written_bytes, kBlock);
  EXPECT_GE(out.evictions, 1u);
  EXPECT_EQ(out.read_bytes, 0u);
  EXPECT_TRUE(rig.holds(at, kBlock, 1));
  const EngineStats in = rig.stats();
  EXPECT_EQ(in.read_bytes, kBlock);
  EXPECT_EQ(in.demand_fetches, 1u);
}

TEST(EngineStats, AWriteCountsWhenItIsDone) {
  Rig rig({.store = {.fail = FailAt{.n = 0, .operation = Operation::write, .from_then_on = true}}});
  std::byte* at = rig.filled(kBlock, 1);
  std::vector<std::byte*> others;
  for (uint64_t i = 2; i < 4; ++i) others.push_back(rig.filled(kBlock, i));
  Pins pins(rig.engine());
  EXPECT_FALSE(rig.engine().allocate(kBlock, Kind::other, &pins, "a test").ok());
  EXPECT_EQ(rig.stats().written_bytes, 0u);
  EXPECT_TRUE(rig.holds(at, kBlock, 1));
}

TEST(EngineStats, ResidentBytesAreCountedByKind) {
  Rig rig;
  Pins pins(rig.engine());
  std::byte* parameter = rig.allocate(kBlock, Kind::parameter);
  std::byte* gradient = rig.allocate(100_KiB, Kind::gradient);
  EXPECT_EQ(rig.stats().resident.of(Kind::parameter), 0u);
  rig.fill(parameter, kBlock, 1);
  rig.fill(gradient, 100_KiB, 2);
  EXPECT_EQ(rig.stats().resident.of(Kind::parameter), kBlock);
  EXPECT_EQ(rig.stats().resident.of(Kind::gradient), 128_KiB) << "frames, not bytes asked for";
  rig.push_out(parameter);
  EXPECT_EQ(rig.stats().resident.of(Kind::parameter), 0u);
  rig.free(gradient);
  EXPECT_EQ(rig.stats().resident.of(Kind::gradient), 0u);
}

TEST(EngineStats, AChangeOfKindMovesWhatIsResident) {
  Rig rig;
  std::byte* at = rig.filled(2 * kBlock, 1);
  EXPECT_EQ(rig.stats().resident.of(Kind::other), 2 * kBlock);
  rig.engine().set_kind(at + 5, Kind::state);
  EXPECT_EQ(rig.stats().resident.of(Kind::other), 0u);
  EXPECT_EQ(rig.stats().resident.of(Kind::state), 2 * kBlock);
  rig.engine().set_kind(at, Kind::state);
  EXPECT_EQ(rig.stats().resident.of(Kind::state), 2 * kBlock);
  int mine = 0;
  rig.engine().set_kind(&mine, Kind::state);
  rig.free(at);
  EXPECT_EQ(rig.stats().resident.of(Kind::state), 0u);
}

TEST(EngineStats, ABlockOnItsWayOutCountsUntilItHasLeft) {
  Rig rig({.eviction = Eviction::eagerly});
  std::byte* at = rig.filled(kBlock, 1);
  EXPECT_EQ(rig.resident(), 0u);
  Pins pins(rig.engine());
  rig.pin(pins, at, kBlock, Access::read);
  EXPECT_EQ(rig.resident(), kBlock);
  rig.engine().set_kind(at, Kind::gradient);
  pins.release();
  EXPECT_EQ(rig.stats().resident.of(Kind::gradient), 0u);
  EXPECT_EQ(rig.stats().resident.of(Kind::other), 0u);
}

TEST(EngineStats, OverheadGrowsWithTheRecords) {
  Rig rig({.limit = 8_MiB, .frames = {.large = 64_KiB, .small = 16_KiB}});
  const Bytes before = rig.stats().overhead_bytes;
  for (int i = 0; i < 4000; ++i) rig.allocate(64_KiB);
  EXPECT_GE(rig.stats().overhead_bytes, before + 4000 * sizeof(Block));
}

TEST(EngineStats, RecordsCountAgainstTheLimitTheMomentTheyExist) {
  Rig rig({.limit = 2_MiB, .frames = {.large = 64_KiB, .small = 16_KiB}});
  for (uint64_t i = 0; i < 2000; ++i) {
    rig.filled(16_KiB, i);
    ASSERT_LE(rig.stats().peak_bytes, 2_MiB) << i;
  }
}

}  // namespace
}  // namespace bottomless
