#include "plan/follower.h"

#include <gtest/gtest.h>

#include "support/random.h"

namespace bottomless {
namespace {

Trace trace_of(const std::vector<uint64_t>& signatures) {
  Trace trace;
  for (const uint64_t signature : signatures) trace.events.push_back({.signature = signature});
  return trace;
}

std::vector<uint64_t> count_to(uint64_t last) {
  std::vector<uint64_t> numbers;
  for (uint64_t i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

TEST(Follower, FollowsTheSameStepToItsEnd) {
  const Trace trace = trace_of(count_to(50));
  Follower follower;
  follower.follow(&trace);
  for (uint64_t i = 1; i <= 50; ++i) EXPECT_EQ(follower.next(i), i - 1);
  EXPECT_EQ(follower.next(1), kNone);
  EXPECT_FALSE(follower.departed());
}

TEST(Follower, PassesOverWhatTheStepDoesNotHave) {
  const Trace trace = trace_of(count_to(50));
  Follower follower;
  follower.follow(&trace);
  for (uint64_t i = 1; i <= 20; ++i) follower.next(i);
  for (uint64_t stray = 1000; stray < 1010; ++stray) EXPECT_EQ(follower.next(stray), kNone);
  EXPECT_TRUE(follower.lost());
  EXPECT_EQ(follower.next(21), 20u);
  EXPECT_FALSE(follower.lost());
  EXPECT_FALSE(follower.departed()) << "all that was expected has come";
}

TEST(Follower, FindsItsWayAfterAFewWhenSomeDoNotCome) {
  const Trace trace = trace_of(count_to(500));
  Follower follower;
  follower.follow(&trace);
  for (uint64_t i = 1; i <= 100; ++i) follower.next(i);
  uint64_t at = 180;  // an expert that was not chosen
  size_t lost = 0;
  while (follower.next(at) == kNone) {
    ++at;
    ++lost;
  }
  EXPECT_EQ(lost + 1, Follower::kInARow);
  EXPECT_EQ(follower.position(), at);
  EXPECT_TRUE(follower.departed());
}

TEST(Follower, GoesBackWhenAPartComesAgain) {
  const Trace trace = trace_of(count_to(300));
  Follower follower;
  follower.follow(&trace);
  for (uint64_t i = 1; i <= 200; ++i) follower.next(i);
  for (uint64_t i = 150; i < 153; ++i) follower.next(i);
  EXPECT_EQ(follower.next(153), 152u);
}

TEST(Follower, FollowsNothing) {
  Follower follower;
  EXPECT_EQ(follower.next(1), kNone);
  follower.follow(nullptr);
  EXPECT_EQ(follower.next(1), kNone);
}

TEST(Follower, IsSoonRightAgainWhateverHappens) {
  Random random(31);
  BOTTOMLESS_TRACE_SEED(random);
  const Trace trace = trace_of(count_to(2000));
  for (int round = 0; round < 50; ++round) {
    Follower follower;
    follower.follow(&trace);
    size_t wrong = 0, departures = 0;
    for (uint64_t at = 1; at <= 2000; ++at) {
      if (random.one_in(100)) {
        at += random.below(40);
        ++departures;
      }
      if (random.one_in(50)) follower.next(10'000 + random.below(1000));
      if (at <= 2000 && follower.next(at) != at - 1) ++wrong;
    }
    EXPECT_LE(wrong, departures * (2 * Follower::kInARow));
  }
}

}  // namespace
}  // namespace bottomless
