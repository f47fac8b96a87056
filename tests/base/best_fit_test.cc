#include "base/best_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "support/random.h"

namespace bottomless {
namespace {

TEST(BestFit, GivesTheSmallestHoleThatFits) {
  BestFit fit(100);
  EXPECT_EQ(fit.allocate(20), 0u);
  EXPECT_EQ(fit.allocate(10), 20u);
  EXPECT_EQ(fit.allocate(8), 30u);
  EXPECT_EQ(fit.allocate(10), 38u);
  EXPECT_EQ(fit.allocate(9), 48u);
  EXPECT_EQ(fit.allocate(10), 57u);
  fit.free(0, 20);
  fit.free(30, 8);
  fit.free(48, 9);
  EXPECT_EQ(fit.allocate(8), 30u);
  EXPECT_EQ(fit.allocate(8), 48u);
  EXPECT_EQ(fit.allocate(8), 0u);
}

TEST(BestFit, GivesTheLowestOfEqualHoles) {
  BestFit fit(100);
  for (uint64_t start = 0; start < 60; start += 10) ASSERT_EQ(fit.allocate(10), start);
  fit.free(40, 10);
  fit.free(0, 10);
  fit.free(20, 10);
  EXPECT_EQ(fit.allocate(10), 0u);
  EXPECT_EQ(fit.allocate(10), 20u);
  EXPECT_EQ(fit.allocate(10), 40u);
}

TEST(BestFit, TouchesNewGroundOnlyWhenNoHoleFits) {
  BestFit fit(100);
  EXPECT_EQ(fit.allocate(80), 0u);
  EXPECT_EQ(fit.allocate(10), 80u);
  fit.free(0, 80);
  EXPECT_EQ(fit.allocate(10), 0u) << "the 10 before the end are a better fit, and new ground";
  EXPECT_EQ(fit.high_water(), 90u);
}

TEST(BestFit, GivesNothingWhenNoHoleIsLargeEnough) {
  BestFit fit(10);
  EXPECT_FALSE(fit.allocate(11));
  EXPECT_EQ(fit.allocate(10), 0u);
  EXPECT_FALSE(fit.allocate(1));
  fit.free(0, 4);
  fit.free(6, 4);
  EXPECT_FALSE(fit.allocate(5)) << "two holes of 4 are not one of 5";
}

TEST(BestFit, AlignsTheStartAndKeepsWhatLiesBeforeIt) {
  BestFit fit(64);
  EXPECT_EQ(fit.allocate(3), 0u);
  EXPECT_EQ(fit.allocate(8, 16), 16u);
  EXPECT_EQ(fit.allocate(13), 3u);
  EXPECT_EQ(fit.used(), 24u);
}

TEST(BestFit, PartsOfAnIntervalMayBeFreed) {
  BestFit fit(10);
  EXPECT_EQ(fit.allocate(10), 0u);
  fit.free(4, 2);
  EXPECT_EQ(fit.used(), 8u);
  EXPECT_EQ(fit.allocate(2), 4u);
}

TEST(BestFit, GrowthMergesWithTheHoleBeforeIt) {
  BestFit fit(10);
  EXPECT_EQ(fit.allocate(6), 0u);
  fit.grow(20);
  EXPECT_EQ(fit.used(), 6u);
  EXPECT_EQ(fit.allocate(14), 6u);
}

TEST(BestFit, StartsEmptyAndGrows) {
  BestFit fit(0);
  EXPECT_FALSE(fit.allocate(1));
  fit.grow(4);
  fit.grow(4);
  EXPECT_EQ(fit.allocate(4), 0u);
}

TEST(BestFit, HighWaterNeverFalls) {
  BestFit fit(100);
  EXPECT_EQ(fit.high_water(), 0u);
  EXPECT_EQ(fit.allocate(30), 0u);
  fit.free(0, 30);
  EXPECT_EQ(fit.allocate(10), 0u);
  EXPECT_EQ(fit.high_water(), 30u);
}

TEST(BestFit, TheTailIsWhatIsFreeRightBeforeTheEnd) {
  BestFit fit(100);
  EXPECT_EQ(fit.tail(), 100u);
  EXPECT_EQ(fit.allocate(60), 0u);
  EXPECT_EQ(fit.tail(), 40u);
  EXPECT_EQ(fit.allocate(40), 60u);
  EXPECT_EQ(fit.tail(), 0u);
  fit.free(10, 20);
  EXPECT_EQ(fit.tail(), 0u) << "a hole further down is none";
  fit.grow(105);
  EXPECT_EQ(fit.tail(), 5u);
  EXPECT_EQ(BestFit(0).tail(), 0u);
}

TEST(BestFitDeathTest, FreeingTwiceStopsTheProcess) {
  BestFit fit(100);
  ASSERT_EQ(fit.allocate(20), 0u);
  ASSERT_EQ(fit.allocate(20), 20u);
  fit.free(0, 20);
  EXPECT_DEATH(fit.free(0, 20), "freed twice");
  EXPECT_DEATH(fit.free(10, 20), "freed twice");
  EXPECT_DEATH(fit.free(90, 20), "never given");
}

// The specification: one flag a unit.
class NaiveFit {
 public:
  explicit NaiveFit(size_t end) : taken_(end, false) {}

  std::optional<uint64_t> allocate(uint64_t size, uint64_t alignment) {
    std::optional<uint64_t> best;
    uint64_t best_hole = 0;
    for (uint64_t hole = 0, next = 0; hole < taken_.size(); hole = next + 1) {
      next = hole;
      while (next < taken_.size() && !taken_[next]) ++next;
      const uint64_t start = (hole + alignment - 1) / alignment * alignment;
      if (start + size > next) continue;
      if (best && (next == taken_.size() || next - hole >= best_hole)) continue;
      best = start;
      best_hole = next - hole;
    }
    if (best) set(*best, size, true);
    return best;
  }
  void set(uint64_t start, uint64_t size, bool taken) {
    for (uint64_t i = start; i < start + size; ++i) taken_[i] = taken;
  }
  bool is_free(uint64_t start, uint64_t size) const {
    for (uint64_t i = start; i < start + size; ++i) {
      if (taken_[i]) return false;
    }
    return true;
  }
  void grow(size_t end) { taken_.resize(end, false); }
  uint64_t tail() const {
    uint64_t count = 0;
    while (count < taken_.size() && !taken_[taken_.size() - 1 - count]) ++count;
    return count;
  }
  uint64_t used() const {
    return static_cast<uint64_t>(std::count(taken_.begin(), taken_.end(), true));
  }

 private:
  std::vector<bool> taken_;
};

struct Interval {
  uint64_t start;
  uint64_t size;
};

TEST(BestFit, AgreesWithTheNaiveModelOverRandomHistories) {
  Random random(21);
  BOTTOMLESS_TRACE_SEED(random);
  for (int history = 0; history < 40; ++history) {
    uint64_t end = random.between(0, 400);
    BestFit fit(end);
    NaiveFit naive(end);
    std::vector<Interval> given;
    for (int step = 0; step < 400; ++step) {
      const uint64_t choice = random.below(100);
      if (choice < 55) {
        const uint64_t size = random.one_in(8) ? random.between(1, 120) : random.between(1, 12);
        const uint64_t alignment = random.one_in(3) ? uint64_t{1} << random.below(6) : 1;
        const auto got = fit.allocate(size, alignment);
        ASSERT_EQ(got, naive.allocate(size, alignment)) << size << " aligned to " << alignment;
        if (got) given.push_back({*got, size});
      } else if (choice < 97 && !given.empty()) {
        const size_t index = random.below(given.size());
        Interval& interval = given[index];
        const uint64_t part = random.one_in(4) ? random.between(1, interval.size) : interval.size;
        fit.free(interval.start, part);
        naive.set(interval.start, part, false);
        interval = {interval.start + part, interval.size - part};
        if (interval.size == 0) given.erase(given.begin() + static_cast<ptrdiff_t>(index));
      } else if (choice >= 97) {
        end += random.below(60);
        fit.grow(end);
        naive.grow(end);
      }
      ASSERT_EQ(fit.used(), naive.used());
      ASSERT_EQ(fit.end(), end);
      ASSERT_LE(fit.high_water(), end);
      ASSERT_EQ(fit.tail(), naive.tail());
    }
    for (const Interval& interval : given) fit.free(interval.start, interval.size);
    ASSERT_EQ(fit.used(), 0u);
    if (end > 0) {
      ASSERT_EQ(fit.allocate(end), 0u) << "everything was freed, so one hole must be left";
    }
  }
}

}  // namespace
}  // namespace bottomless
