// Fetches ahead of need: they take what room there is, push nobody out, and give way to those who wait.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit

Need whole(const std::byte* at, Bytes bytes = kBlock) { return {.address = at, .bytes = bytes}; }

class Ahead : public testing::Test {
 protected:
  void SetUp() override {
    for (uint64_t i = 0; i < 2; ++i) away_.push_back(rig_.filled(kBlock, i));
    for (const std::byte* at : away_) rig_.push_out(at);
    for (const std::byte* at : away_) ASSERT_FALSE(is_readable(at));
    fetches_ = rig_.stats().demand_fetches;
  }
  void prefetch(std::vector<Need> needs) { rig_.engine().prefetch(needs); }

  Rig rig_;
  std::vector<std::byte*> away_;
  uint64_t fetches_ = 0;
};

TEST_F(Ahead, WhatWasFetchedAheadIsThereWhenItIsNeeded) {
  prefetch({whole(away_[0]), whole(away_[1])});
  rig_.engine().wait_for_io();
  EXPECT_EQ(rig_.stats().prefetches, 2u);
  for (uint64_t i = 0; i < 2; ++i) EXPECT_TRUE(rig_.holds(away_[i], kBlock, i));
  EXPECT_EQ(rig_.stats().demand_fetches, fetches_) << "nobody had to wait";
}

TEST_F(Ahead, NothingIsFetchedTwiceOrWithoutContent) {
  std::byte* empty = rig_.allocate(kBlock);
  prefetch({whole(away_[0]), whole(away_[0]), whole(empty)});
  rig_.engine().wait_for_io();
  prefetch({whole(away_[0])});
  EXPECT_EQ(rig_.stats().prefetches, 1u);
}

TEST_F(Ahead, NobodyLeavesForIt) {
  Pins pins(rig_.engine());
  rig_.allocate_pinned(kBlock, pins);
  pins.release();
  std::byte* idle = rig_.filled(kBlock, 7);
  const uint64_t evictions = rig_.stats().evictions;
  prefetch({whole(away_[0]), whole(away_[1])});
  rig_.engine().wait_for_io();
  EXPECT_EQ(rig_.stats().prefetches, 1u) << "there was room for one";
  EXPECT_EQ(rig_.stats().evictions, evictions);
  EXPECT_TRUE(is_readable(idle));
}

TEST_F(Ahead, APrefetchBecomesADemandWhenSomebodyWaitsForIt) {
  rig_.store().hold();
  prefetch({whole(away_[0])});
  std::thread demand([&] { EXPECT_TRUE(rig_.holds(away_[1], kBlock, 1)); });
  rig_.store().wait_for_pending(2);
  EXPECT_EQ(rig_.store().pending(), (std::vector{Priority::prefetch, Priority::demand}));
  std::thread waiting([&] { EXPECT_TRUE(rig_.holds(away_[0], kBlock, 0)); });
  while (rig_.store().pending().front() != Priority::demand) std::this_thread::yield();
  rig_.store().release();
  demand.join();
  waiting.join();
}

TEST_F(Ahead, AFailureIsNobodysUntilItIsNeededAndThenItIsTriedAgain) {
  rig_.store().fail(FailAt{.n = 0, .operation = Operation::read});
  prefetch({whole(away_[0])});
  rig_.engine().wait_for_io();
  EXPECT_TRUE(rig_.store().fired());
  EXPECT_TRUE(rig_.holds(away_[0], kBlock, 0));
}

TEST_F(Ahead, WhatIsFreedMeanwhileIsGoneWhenTheReadEnds) {
  rig_.store().hold();
  prefetch({whole(away_[0])});
  rig_.free(away_[0]);
  rig_.store().release();
  rig_.engine().wait_for_io();
  EXPECT_EQ(rig_.engine().live_storages(), 1u);
}

}  // namespace
}  // namespace bottomless
