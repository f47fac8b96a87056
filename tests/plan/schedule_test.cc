// What a schedule promises: never above the capacity, nothing used that is not there, and not many more bytes moved
// than the least possible.
#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan/simulation.h"
#include "plan/traffic_bound.h"
#include "support/random.h"
#include "support/trace_maker.h"

namespace bottomless {
namespace {

// Does what the schedule says, for a few steps in a row, and checks at every event that it can be done.
struct Replay {
  Bytes read = 0, written = 0, peak = 0;  // of the last step

  Replay(const Trace& trace, const Schedule& schedule) {
    const std::vector<uint32_t> after = successors(trace);
    std::set<uint32_t> here, stored, dirty;
    for (int step = 0; step < 4; ++step) {
      read = written = peak = 0;
      for (size_t event = 0; event < trace.events.size(); ++event) {
        const auto uses = trace.uses_of(event);
        for (const TraceUse& use : uses) {
          if (here.insert(use.block).second && use.fetches && stored.contains(use.block))
            read += trace.block_bytes[use.block];
          if (use.writes) dirty.insert(use.block);
        }
        Bytes now = 0;
        for (const uint32_t block : here) now += trace.block_bytes[block];
        peak = std::max(peak, now);
        for (size_t i = 0; i < uses.size(); ++i) {
          const uint32_t block = uses[i].block;
          if (schedule.uses[trace.events[event].first_use + i].keep) continue;
          here.erase(block);
          if (dirty.erase(block) > 0) written += trace.block_bytes[block];
          stored.insert(block);
        }
        for (const uint32_t storage : trace.deaths_of(event)) {
          const uint32_t block = trace.storages[storage].first_block;
          here.erase(block);
          dirty.erase(block);
          stored.erase(block);
        }
      }
      const auto carry = [&](std::set<uint32_t>& blocks) {
        std::set<uint32_t> next;
        for (const uint32_t block : blocks) {
          if (after[block] != kNone) next.insert(after[block]);
        }
        blocks = next;
      };
      carry(here);
      carry(stored);
      carry(dirty);
    }
  }
};

TEST(Schedule, MovesNothingWhenEverythingFits) {
  const Trace trace = training_step({});
  const Schedule schedule = make_schedule(trace, 1'000'000);
  EXPECT_EQ(schedule.moved(), 0u);
  EXPECT_TRUE(schedule.fetches.empty());
  EXPECT_TRUE(
      std::all_of(schedule.uses.begin(), schedule.uses.end(), [](auto& u) { return u.keep; }));
}

TEST(Schedule, BytesOfAdamWithNothingCached) {
  // 36 bytes a parameter of four with updates deferred, 40 with the norm of all gradients: see the issue of the day.
  Network network{.layers = 200, .parameter = 400, .activation = 1};
  for (const auto& [clipped, expected] : {std::pair(false, 36.0), {true, 40.0}}) {
    network.clipped = clipped;
    const Trace trace = training_step(network);
    const Schedule schedule = make_schedule(trace, 2000);
    const double parameters = 200 * 400 / 4.0;
    const double moved = static_cast<double>(schedule.moved()) / parameters;
    EXPECT_LE(moved, expected * 1.01);
    EXPECT_GE(moved, expected * 0.95);
  }
}

TEST(Schedule, WhatDiesOrIsCleanIsNotWritten) {
  const Trace trace = training_step({.layers = 40, .parameter = 100, .activation = 100});
  const Schedule schedule = make_schedule(trace, 1500);
  // Parameters, two states and the gradients of a step, and most activations; none of it twice.
  EXPECT_LE(schedule.written, 40u * 400u + 40u * 100u);
}

class ScheduleProperty : public ::testing::TestWithParam<int> {};

TEST_P(ScheduleProperty, HoldsTheCapacityAndCountsWhatItMoves) {
  Random random(900 + static_cast<uint64_t>(GetParam()));
  BOTTOMLESS_TRACE_SEED(random);
  for (int round = 0; round < 40; ++round) {
    const Trace trace = random_step(random, random.between(3, 60), random.between(2, 12), 10);
    const Bytes least = trace.most_at_once();
    const Bytes capacity = least + random.below(60);
    const Schedule schedule = make_schedule(trace, capacity);
    const Replay replay(trace, schedule);
    EXPECT_LE(replay.peak, capacity);
    EXPECT_LE(*std::max_element(schedule.held.begin(), schedule.held.end()), capacity);
    EXPECT_EQ(replay.read, schedule.read);
    EXPECT_EQ(replay.written, schedule.written);
    EXPECT_GE(schedule.moved(), schedule.bound);
    for (const Schedule::Fetch& fetch : schedule.fetches) EXPECT_LE(fetch.start, fetch.needed);
    EXPECT_TRUE(std::is_sorted(schedule.fetches.begin(), schedule.fetches.end(),
                               [](auto& a, auto& b) { return a.start < b.start; }));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ScheduleProperty, ::testing::Range(0, 5));

TEST(Schedule, IsWithinATenthOfTheBoundForTraining) {
  for (const bool deferred : {true, false}) {
    for (const bool clipped : {true, false}) {
      for (const Bytes activation : {1u, 20u, 100u, 300u}) {
        const Trace trace = training_step({.layers = 36,
                                           .parameter = 100,
                                           .activation = activation,
                                           .deferred = deferred,
                                           .clipped = clipped});
        for (const Bytes capacity : {800u, 1600u, 3200u, 6400u}) {
          if (capacity < trace.most_at_once()) continue;
          const Schedule schedule = make_schedule(trace, capacity);
          const Bytes moved = schedule.moved();
          const Bytes bound = bound_traffic(trace, capacity, moved, 300).bytes;
          EXPECT_LE(static_cast<double>(moved), 1.10 * static_cast<double>(bound))
              << "deferred " << deferred << " clipped " << clipped << " activation " << activation
              << " capacity " << capacity;
        }
      }
    }
  }
}

TEST(Schedule, FetchesAreThereInTimeWhenTheDiskIsFastEnough) {
  const Trace trace = training_step({.layers = 36, .parameter = 100, .activation = 10});
  const Schedule schedule = make_schedule(trace, 2000);
  const double moved = static_cast<double>(schedule.moved());
  // As fast as it must be to move everything in the time of the computing, three times over: the updates come in a third of it.
  const double rate = moved / trace.seconds() * 3;
  const Prediction fast = predict(trace, schedule, 2400, {.both = rate});
  EXPECT_LE(fast.seconds, trace.seconds() * 1.10);
  const Prediction slow = predict(trace, schedule, 2400, {.both = rate / 6});
  EXPECT_LE(slow.seconds, moved / (rate / 6) * 1.15);
  EXPECT_GE(slow.seconds, moved / (rate / 6) * 0.95);
}

// Content that is other in every step: what was fetched is of no use in the next, and cannot be had before it begins.
TEST(Schedule, FetchesRenewedBlocksAnewInTheirOwnStep) {
  TraceMaker maker;
  TraceMaker::Storage* weights[3];
  for (TraceMaker::Storage*& weight : weights) {
    maker.run("begin", {});
    weight = maker.make(100, Kind::parameter);
  }
  Trace trace;
  for (int step = 0; step < 3; ++step) {
    trace = maker.end_step();
    for (TraceMaker::Storage* weight : weights) weight->renewed = true;
    for (const char* pass : {"forward", "backward"}) {
      for (TraceMaker::Storage* weight : weights) maker.run(pass, {{weight}});
    }
  }
  trace = maker.end_step();
  ASSERT_EQ(trace.events.size(), 6u);
  const Schedule ample = make_schedule(trace, 1000, 100);
  EXPECT_EQ(ample.read, 300u) << "each once a step";
  ASSERT_EQ(ample.fetches.size(), 3u);
  for (const Schedule::Fetch& fetch : ample.fetches) {
    EXPECT_LE(fetch.start, fetch.needed);
    EXPECT_LT(fetch.needed, trace.events.size()) << "not begun in the step before";
  }
  EXPECT_EQ(ample.fetches.back().start, 0u) << "there is room from the begin";
  const Schedule tight = make_schedule(trace, 220, 0);
  EXPECT_GT(tight.read, 300u);
  EXPECT_LE(tight.read, 600u);
}

}  // namespace
}  // namespace bottomless
