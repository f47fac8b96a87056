// Orders that are drawn by a seed, and the learning rate of a step.
#include <gtest/gtest.h>

#include <set>

#include "data/learning_rate.h"
#include "data/permutation.h"
#include "support/random.h"

namespace bottomless::data {
namespace {

std::vector<uint64_t> all_of(const Permutation& order) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < order.size(); ++i) all.push_back(order(i));
  return all;
}

TEST(Permutation, HasEveryIndexOnce) {
  Random random(93);
  BOTTOMLESS_TRACE_SEED(random);
  std::vector<uint64_t> sizes{1, 2, 3, 4, 5, 15, 16, 17, 255, 256, 257, 4096};
  for (int i = 0; i < 20; ++i) sizes.push_back(random.between(1, 20'000));
  for (const uint64_t size : sizes) {
    const std::vector<uint64_t> all = all_of(Permutation(size, random.next()));
    const std::set<uint64_t> distinct(all.begin(), all.end());
    EXPECT_EQ(distinct.size(), size);
    EXPECT_EQ(*distinct.rbegin(), size - 1);
  }
}

TEST(Permutation, OfHugeRangesStaysInside) {
  const uint64_t size = (uint64_t{1} << 62) + 12345;
  const Permutation order(size, 1);
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(order(i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_LT(*seen.rbegin(), size);
  EXPECT_GT(*seen.rbegin(), size / 2) << "small indices stay small";
}

TEST(Permutation, IsDrawnBySeed) {
  EXPECT_EQ(all_of(Permutation(100, 7)), all_of(Permutation(100, 7)));
  EXPECT_NE(all_of(Permutation(100, 7)), all_of(Permutation(100, 8)));
}

TEST(Permutation, PutsEachIndexEverywhereEquallyOften) {
  constexpr uint64_t kSize = 10, kSeeds = 20'000;
  std::vector<std::vector<uint64_t>> times(kSize, std::vector<uint64_t>(kSize));
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<uint64_t> all = all_of(Permutation(kSize, mix(seed, 3)));
    for (uint64_t i = 0; i < kSize; ++i) ++times[i][all[i]];
  }
  // 2,000 expected, with a standard deviation of 42.
  for (const auto& of_index : times) {
    for (const uint64_t count : of_index) EXPECT_NEAR(static_cast<double>(count), 2000, 6 * 42);
  }
}

TEST(Permutation, IsTheSameOnEveryMachineAndInEveryVersion) {
  EXPECT_EQ(all_of(Permutation(8, 42)), (std::vector<uint64_t>{0, 7, 3, 4, 6, 2, 1, 5}));
}

TEST(LearningRate, RisesThenFallsToItsFinalShare) {
  LearningRate schedule{.peak = 1, .warm_up_steps = 3, .steps = 14, .decay = Decay::linear};
  EXPECT_DOUBLE_EQ(rate_at(schedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 2), 0.75);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 3), 1);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 8), 0.55);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 13), 0.1);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 1000), 0.1);
  schedule.decay = Decay::cosine;
  EXPECT_DOUBLE_EQ(rate_at(schedule, 3), 1);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 8), 0.55);
  EXPECT_GT(rate_at(schedule, 5), 0.9);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 13), 0.1);
  schedule.decay = Decay::constant;
  EXPECT_DOUBLE_EQ(rate_at(schedule, 1), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(schedule, 13), 1);
}

TEST(LearningRate, OfShortRunsIsFinite) {
  for (uint64_t steps = 0; steps < 5; ++steps) {
    for (uint64_t warm_up = 0; warm_up < 5; ++warm_up) {
      for (const Decay decay : {Decay::constant, Decay::linear, Decay::cosine}) {
        const LearningRate schedule{1, warm_up, steps, decay, 0.1};
        for (uint64_t step = 0; step < 8; ++step) {
          EXPECT_GT(rate_at(schedule, step), 0);
          EXPECT_LE(rate_at(schedule, step), 1);
        }
      }
    }
  }
}

TEST(LearningRate, IsChosenByName) {
  EXPECT_EQ(parse_decay("cosine").value(), Decay::cosine);
  EXPECT_EQ(parse_decay("linear").value(), Decay::linear);
  EXPECT_EQ(parse_decay("constant").value(), Decay::constant);
  EXPECT_EQ(parse_decay("step").error().message,
            "choose a schedule for the learning rate: 'step' is none; take constant, linear or "
            "cosine");
}

}  // namespace
}  // namespace bottomless::data
