// How blocks leave and come back: who leaves first, what is written, and what may happen while it is.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

TEST(Residency, TheLeastRecentlyUsedBlockLeaves) {
  Rig rig;
  std::byte* a = rig.filled(kBlock, 1);
  std::byte* b = rig.filled(kBlock, 2);
  std::byte* c = rig.filled(kBlock, 3);
  EXPECT_TRUE(rig.holds(a, kBlock, 1));  // used again, so b is now the oldest
  rig.filled(kBlock, 4);
  EXPECT_TRUE(is_readable(a));
  EXPECT_FALSE(is_readable(b));
  EXPECT_TRUE(is_readable(c));
}

TEST(Residency, ACleanBlockIsNotWrittenAgain) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  const Bytes once = rig.stats().written_bytes;
  for (int round = 0; round < 5; ++round) {
    EXPECT_TRUE(rig.holds(at, kBlock, 1));
    const Bytes before = rig.stats().written_bytes;
    Pins two(rig.engine());
    std::byte* others = rig.allocate_pinned(3 * kBlock, two);
    EXPECT_FALSE(is_readable(at));
    EXPECT_EQ(rig.stats().written_bytes, before) << "only clean blocks left";
    rig.engine().free(others, &two);
  }
  EXPECT_GE(once, kBlock);
}

TEST(Residency, AReadOnlyPinLeavesTheBlockCleanAndProtected) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  Pins pins(rig.engine());
  rig.pin(pins, at, kBlock, Access::read);
  EXPECT_TRUE(is_readable(at));
  EXPECT_FALSE(is_writable(at));
  rig.pin(pins, at, kBlock, Access::write);
  EXPECT_TRUE(is_writable(at)) << "a second pin may ask for more";
}

TEST(Residency, AWriteAfterAWritePinSurvivesTheNextEviction) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  for (uint64_t version = 2; version < 6; ++version) {
    rig.push_out(at);
    rig.fill(at, kBlock, version);
    rig.push_out(at);
    EXPECT_TRUE(rig.holds(at, kBlock, version));
  }
  EXPECT_EQ(rig.store().in_use(), kBlock) << "the extent is written again, not a new one each time";
}

TEST(Residency, AWriteAfterATouchSurvivesTheNextEviction) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  ASSERT_TRUE(rig.engine().touch(at, Access::read).value());
  ASSERT_FALSE(is_writable(at));
  ASSERT_TRUE(rig.engine().touch(at, Access::write).value());
  write_pattern(at, kBlock, 2);
  rig.push_out(at);
  EXPECT_TRUE(rig.holds(at, kBlock, 2));
}

TEST(Residency, ABlockThatWasNeverWrittenToIsNotRead) {
  Rig rig;
  std::byte* at = rig.allocate(kBlock);
  Pins pins(rig.engine());
  rig.pin(pins, at, kBlock, Access::read);
  EXPECT_EQ(rig.stats().read_bytes, 0u);
  EXPECT_EQ(rig.stats().demand_fetches, 0u);
}

// Holds the store with one block on its way out, and whoever needs its room waiting.
class WhileWriting : public testing::Test {
 protected:
  void SetUp() override {
    a_ = rig_.filled(kBlock, 1);
    b_ = rig_.filled(kBlock, 2);
    c_ = rig_.filled(kBlock, 3);
    rig_.store().hold();
    needs_room_ = std::thread([this] { d_ = rig_.filled(kBlock, 4); });
    rig_.store().wait_for_pending(1);
  }
  void TearDown() override { finish(); }
  void finish() {
    rig_.store().release();
    if (needs_room_.joinable()) needs_room_.join();
  }

  Rig rig_;
  std::byte *a_ = nullptr, *b_ = nullptr, *c_ = nullptr, *d_ = nullptr;
  std::thread needs_room_;
};

TEST_F(WhileWriting, TheBlockCanBeReadButNotWritten) {
  EXPECT_TRUE(is_readable(a_));
  EXPECT_FALSE(is_writable(a_)) << "what reaches the disk must be one version";
}

TEST_F(WhileWriting, APinForReadingIsServedAtOnceAndKeepsTheBlock) {
  Pins pins(rig_.engine());
  rig_.pin(pins, a_, kBlock, Access::read);  // returns although the store is held
  EXPECT_TRUE(has_pattern(a_, kBlock, 1));
  finish();  // somebody else left instead
  EXPECT_TRUE(has_pattern(a_, kBlock, 1));
  EXPECT_FALSE(is_writable(a_));
  EXPECT_TRUE(rig_.holds(d_, kBlock, 4));
}

TEST_F(WhileWriting, ARescuedBlockThatIsReleasedStillLeavesWhenItsWriteIsDone) {
  {
    Pins pins(rig_.engine());
    rig_.pin(pins, a_, kBlock, Access::read);
  }
  finish();
  EXPECT_TRUE(rig_.holds(d_, kBlock, 4));
  EXPECT_TRUE(rig_.holds(a_, kBlock, 1));
  EXPECT_TRUE(rig_.holds(b_, kBlock, 2));
  EXPECT_TRUE(rig_.holds(c_, kBlock, 3));
  // Three still fit: the memory of the rescued one is not counted as leaving for ever.
  for (std::byte* at : {a_, b_, c_}) EXPECT_TRUE(is_readable(at));
}

TEST_F(WhileWriting, APinForWritingWaitsForTheWriteAndItsDataSurvive) {
  std::atomic<bool> started = false;
  std::atomic<bool> pinned = false;
  std::thread writer([&] {
    started = true;
    Pins pins(rig_.engine());
    rig_.pin(pins, a_, kBlock, Access::write);
    pinned = true;
    write_pattern(a_, kBlock, 11);
  });
  while (!started) std::this_thread::yield();
  for (int i = 0; i < 20000 && !pinned; ++i) std::this_thread::yield();  // every chance to be early
  EXPECT_FALSE(pinned) << "the write has not ended";
  finish();
  writer.join();
  rig_.push_out(a_);
  EXPECT_TRUE(rig_.holds(a_, kBlock, 11));
}

TEST_F(WhileWriting, ATouchForReadingIsServedAtOnce) {
  EXPECT_TRUE(rig_.engine().touch(a_, Access::read).value());
  EXPECT_TRUE(has_pattern(a_, kBlock, 1));
}

TEST_F(WhileWriting, AFreedBlockGoesWhenItsWriteIsDone) {
  rig_.free(a_);
  EXPECT_EQ(rig_.store().extents(), 1u) << "the extent is still being written";
  finish();
  EXPECT_TRUE(rig_.holds(b_, kBlock, 2));
  EXPECT_TRUE(rig_.holds(c_, kBlock, 3));
  EXPECT_TRUE(rig_.holds(d_, kBlock, 4));
  EXPECT_EQ(rig_.engine().live_storages(), 3u);
}

TEST_F(WhileWriting, TheEngineWaitsForTheTransferBeforeItEnds) {
  // ~Rig: lets go and destroys the engine. What the worker still copies must be mapped until then.
  std::thread late([&] { rig_.store().release(); });
  late.join();
}

TEST(Residency, AFreedBlockGoesWhenItsFetchIsDone) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  rig.store().hold();
  std::thread reader([&] {
    Pins pins(rig.engine());
    rig.pin(pins, at, kBlock, Access::read);
    EXPECT_TRUE(has_pattern(at, kBlock, 1)) << "pinned, so it is whole though it is dead";
  });
  rig.store().wait_for_pending(1);
  rig.free(at);
  EXPECT_EQ(rig.engine().live_storages(), 1u);
  rig.store().release();
  reader.join();
  EXPECT_EQ(rig.engine().live_storages(), 0u);
}

TEST(Residency, TwoPinsOfOneAbsentBlockShareOneFetch) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  const uint64_t before = rig.stats().demand_fetches;
  rig.store().hold();
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] { EXPECT_TRUE(rig.holds(at, kBlock, 1)); });
  }
  rig.store().wait_for_pending(1);
  rig.store().release();
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(rig.stats().demand_fetches, before + 1);
}

TEST(Residency, AbsentBlocksOfOnePinAreFetchedTogether) {
  Rig rig;
  std::byte* at = rig.filled(3 * kBlock, 1);
  for (uint64_t i = 0; i < 3; ++i) rig.push_out(at + i * kBlock);
  rig.store().hold();
  std::thread reader([&] { EXPECT_TRUE(rig.holds(at, 3 * kBlock, 1)); });
  rig.store().wait_for_pending(3);  // all three are under way before the first has come
  rig.store().release();
  reader.join();
}

}  // namespace
}  // namespace bottomless
