#include "engine/budget.h"

#include <gtest/gtest.h>

#include "memory/heap.h"

namespace bottomless {
namespace {

class BudgetTest : public ::testing::Test {
 protected:
  std::unique_ptr<Heap> heap_ =
      Heap::create({.limit = 8_MiB, .frames = {.large = 512_KiB, .small = 64_KiB}}).value();
  StorageTable table_{*heap_, 512_KiB};
  Budget budget_{8_MiB, 1_MiB, *heap_, table_};
};

TEST_F(BudgetTest, TheHeapHasWhatRecordsAndChargesLeave) {
  EXPECT_EQ(heap_->budget(), 8_MiB - budget_.reserved());
  const Budget::Reservation more = budget_.missing_for(100, 0);
  EXPECT_EQ(more.charges, budget_.charge_step()) << "reserved in steps";
  ASSERT_TRUE(budget_.try_reserve(more, 100));
  EXPECT_EQ(budget_.charged(), 100u);
  EXPECT_EQ(heap_->budget(), 8_MiB - budget_.reserved());
}

TEST_F(BudgetTest, AChargeThatTheSlackCoversNeedsNothingMore) {
  ASSERT_TRUE(budget_.try_reserve(budget_.missing_for(100, 0), 100));
  const Bytes reserved = budget_.reserved();
  EXPECT_EQ(budget_.take_slack(1000), 1000u);
  EXPECT_EQ(budget_.charged(), 1100u);
  EXPECT_EQ(budget_.reserved(), reserved);
  EXPECT_EQ(budget_.take_slack(budget_.charge_step()), budget_.charge_step() - 1100)
      << "no more than there is";
}

TEST_F(BudgetTest, WhatIsDischargedGoesBackToTheHeapWhenItIsAskedFor) {
  const Bytes before = heap_->budget();
  ASSERT_TRUE(budget_.try_reserve(budget_.missing_for(1_MiB, 0), 1_MiB));
  budget_.discharge(1_MiB);
  EXPECT_EQ(budget_.charged(), 0u);
  EXPECT_LT(heap_->budget(), before) << "it is often wanted again";
  EXPECT_FALSE(budget_.relax(1_MiB));
  EXPECT_TRUE(budget_.relax(0));
  EXPECT_EQ(heap_->budget(), before);
}

TEST_F(BudgetTest, NothingIsReservedThatTheHeapHolds) {
  const Budget::Reservation more = budget_.missing_for(6_MiB, 0);
  Frames frames = heap_->take(512_KiB).value();
  Frames others = heap_->take(512_KiB).value();
  EXPECT_FALSE(budget_.try_reserve(more, 6_MiB));
  EXPECT_EQ(budget_.charged(), 0u);
  heap_->park(std::move(frames));
  heap_->park(std::move(others));
  EXPECT_TRUE(budget_.try_reserve(more, 6_MiB));
}

TEST_F(BudgetTest, RecordsAreCountedBeforeTheyAreMade) {
  const Bytes bytes = 64_MiB;
  std::byte* at = heap_->reserve(bytes).value();
  const Bytes more = table_.record_bytes_for(at, bytes, nullptr);
  const Bytes before = table_.record_bytes();
  Storage& storage = table_.add(at, bytes, Kind::other, nullptr);
  EXPECT_EQ(table_.record_bytes(), before + more);
  table_.remove(storage);
  heap_->release(at, bytes);
}

TEST_F(BudgetTest, TheAdvisedLimitIsWholeMebibytesAndEnough) {
  const Bytes advised = budget_.advised_limit(10_MiB + 1);
  EXPECT_EQ(advised % 1_MiB, 0u);
  EXPECT_GT(advised, 10_MiB);
}

}  // namespace
}  // namespace bottomless
