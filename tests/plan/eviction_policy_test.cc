#include "plan/eviction_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "support/random.h"

namespace bottomless {
namespace {

TEST(Recency, NobodyLeavesWhenNobodyMay) {
  Recency recency;
  EXPECT_EQ(recency.victim(0), nullptr);
}

TEST(Recency, TheLeastRecentlyAddedLeavesFirst) {
  Recency recency;
  EvictionCandidate a, b, c;
  recency.add(a);
  recency.add(b);
  recency.add(c);
  EXPECT_EQ(recency.victim(0), &a);
  EXPECT_EQ(recency.victim(0), &a) << "asking changes nothing";
  recency.remove(a);
  EXPECT_EQ(recency.victim(0), &b);
  recency.add(a);
  recency.remove(b);
  EXPECT_EQ(recency.victim(0), &c) << "what was used again moved behind the others";
  recency.remove(c);
  EXPECT_EQ(recency.victim(0), &a);
  recency.remove(a);
  EXPECT_EQ(recency.victim(0), nullptr);
}

TEST(Recency, RemovalFromTheMiddleKeepsTheOrder) {
  Recency recency;
  EvictionCandidate a, b, c;
  recency.add(a);
  recency.add(b);
  recency.add(c);
  recency.remove(b);
  recency.remove(a);
  EXPECT_EQ(recency.victim(0), &c);
}

TEST(Recency, ACandidateKnowsWhetherItIsListed) {
  Recency recency;
  EvictionCandidate a;
  EXPECT_FALSE(a.listed());
  recency.add(a);
  EXPECT_TRUE(a.listed());
  recency.remove(a);
  EXPECT_FALSE(a.listed());
}

TEST(Recency, AgreesWithAListOverRandomHistories) {
  Random random(31);
  BOTTOMLESS_TRACE_SEED(random);
  Recency recency;
  std::array<EvictionCandidate, 24> candidates;
  std::vector<EvictionCandidate*> expected;  // oldest first
  for (int step = 0; step < 20000; ++step) {
    EvictionCandidate& candidate = candidates[random.below(candidates.size())];
    if (candidate.listed()) {
      recency.remove(candidate);
      expected.erase(std::find(expected.begin(), expected.end(), &candidate));
    } else {
      recency.add(candidate);
      expected.push_back(&candidate);
    }
    ASSERT_EQ(recency.victim(0), expected.empty() ? nullptr : expected.front());
  }
}

TEST(Farthest, WhatComesNextStaysAndWhatDidNotComeLeaves) {
  Farthest farthest;
  std::array<EvictionCandidate, 7> candidates;  // the last four were just used
  const std::array<uint64_t, 7> next{50, 51, 70, 90, 90, 90, 90};
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].next_use = next[i];
    farthest.add(candidates[i]);
  }
  EXPECT_EQ(farthest.victim(50), &candidates[2]);
  EXPECT_EQ(farthest.victim(51), &candidates[0]);
}

TEST(Farthest, WhatIsAwaitedLeavesLast) {
  Farthest farthest;
  std::array<EvictionCandidate, 8> candidates;
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].next_use = 100 - i;
    farthest.add(candidates[i]);
  }
  candidates[0].announced = true;
  EXPECT_EQ(farthest.victim(1), &candidates[1]);
  for (size_t i = 1; i < candidates.size(); ++i) farthest.remove(candidates[i]);
  EXPECT_EQ(farthest.victim(1), &candidates[0]);
}

}  // namespace
}  // namespace bottomless
