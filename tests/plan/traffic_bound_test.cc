// The bound against the best there is, found by trying everything, on traces small enough for that.
#include "plan/traffic_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "plan/schedule.h"
#include "support/random.h"
#include "support/trace_maker.h"

namespace bottomless {
namespace {

// The cheapest way to do a step and be as before: for every set of blocks in memory, clean or dirty, that a step may
// begin with, the cheapest way through it back to the same set.
class Exhaustive {
 public:
  Exhaustive(const Trace& trace, Bytes capacity)
      : trace_(trace), capacity_(capacity), after_(successors(trace)) {}

  Bytes cheapest_step() {
    // In steps that repeat, the cost of a step is at least that of the cheapest cycle; cycles of one step are what
    // a schedule makes, longer ones are covered by walking several steps and dividing.
    constexpr int kSteps = 4;
    std::map<State, Bytes> costs = reachable();
    Bytes best = std::numeric_limits<Bytes>::max();
    for (const auto& [start, unused] : costs) {
      std::map<State, Bytes> now{{start, 0}};
      for (int step = 0; step < kSteps; ++step) {
        now = walk(now);
        if (const auto back = now.find(start); back != now.end())
          best = std::min(best, back->second / static_cast<Bytes>(step + 1));
      }
    }
    return best;
  }

 private:
  // For each block: 0 nowhere, 1 on disk only, 2 in memory and as on disk, 3 in memory and newer.
  using State = std::vector<uint8_t>;

  std::map<State, Bytes> reachable() {
    std::map<State, Bytes> now{{State(trace_.block_bytes.size(), 0), 0}};
    for (int step = 0; step < 3; ++step) now = walk(now);
    return now;
  }

  std::map<State, Bytes> walk(std::map<State, Bytes> now) {
    for (size_t event = 0; event < trace_.events.size(); ++event) {
      std::map<State, Bytes> next;
      for (const auto& [state, cost] : now) leave(event, state, cost, 0, next);
      now = std::move(next);
    }
    std::map<State, Bytes> carried;
    for (const auto& [state, cost] : now) {
      State then(state.size(), 0);
      for (size_t block = 0; block < state.size(); ++block) {
        if (after_[block] != kNone) then[after_[block]] = state[block];
      }
      keep_cheaper(carried, then, cost);
    }
    return carried;
  }

  // Decides for each block whether it leaves before the event, then runs it.
  void leave(size_t event, State state, Bytes cost, size_t block, std::map<State, Bytes>& next) {
    while (block < state.size() && state[block] < 2) ++block;
    if (block == state.size()) {
      run(event, std::move(state), cost, next);
      return;
    }
    leave(event, state, cost, block + 1, next);
    if (state[block] == 3) cost += trace_.block_bytes[block];
    state[block] = 1;
    leave(event, std::move(state), cost, block + 1, next);
  }

  void run(size_t event, State state, Bytes cost, std::map<State, Bytes>& next) {
    for (const TraceUse& use : trace_.uses_of(event)) {
      uint8_t& now = state[use.block];
      if (now == 1 && use.fetches) cost += trace_.block_bytes[use.block];
      if (now < 2) now = now == 1 && use.fetches ? 2 : 3;
      if (use.writes) now = 3;
    }
    Bytes held = 0;
    for (size_t block = 0; block < state.size(); ++block)
      held += state[block] >= 2 ? trace_.block_bytes[block] : 0;
    if (held > capacity_) return;
    for (const uint32_t storage : trace_.deaths_of(event))
      state[trace_.storages[storage].first_block] = 0;
    keep_cheaper(next, state, cost);
  }

  static void keep_cheaper(std::map<State, Bytes>& costs, const State& state, Bytes cost) {
    const auto [known, is_new] = costs.try_emplace(state, cost);
    if (!is_new) known->second = std::min(known->second, cost);
  }

  const Trace& trace_;
  const Bytes capacity_;
  const std::vector<uint32_t> after_;
};

TEST(TrafficBound, IsNeverAboveTheBestAndTheScheduleNeverBelow) {
  Random random(4711);
  BOTTOMLESS_TRACE_SEED(random);
  double schedules = 0, best = 0, bounds = 0;
  for (int round = 0; round < 60; ++round) {
    const Trace trace = random_step(random, random.between(2, 7), random.between(2, 4), 4);
    Bytes least = 0;
    for (size_t event = 0; event < trace.events.size(); ++event) {
      Bytes together = 0;
      for (const TraceUse& use : trace.uses_of(event)) together += trace.block_bytes[use.block];
      least = std::max(least, together);
    }
    const Bytes capacity = least + random.below(4);
    const Bytes cheapest = Exhaustive(trace, capacity).cheapest_step();
    const Schedule schedule = make_schedule(trace, capacity);
    const Bytes bound = bound_traffic(trace, capacity, schedule.moved(), 500).bytes;
    EXPECT_LE(bound, cheapest) << "round " << round;
    EXPECT_GE(schedule.moved(), cheapest) << "round " << round;
    schedules += static_cast<double>(schedule.moved());
    best += static_cast<double>(cheapest);
    bounds += static_cast<double>(bound);
  }
  EXPECT_GT(best, 0) << "nothing had to move: the test shows nothing";
  // With blocks this few and this uneven, being clumsy shows most.
  EXPECT_LE(schedules, 1.15 * best);
  EXPECT_GE(bounds, 0.5 * best);
}

TEST(TrafficBound, IsZeroWhenAllFits) {
  EXPECT_EQ(bound_traffic(training_step({}), 1'000'000, 1000, 100).bytes, 0u);
}

TEST(TrafficBound, IsTheWholeOfItWhenNothingStays) {
  const Trace trace =
      training_step({.layers = 100, .parameter = 100, .activation = 1, .deferred = true});
  // Parameter read twice and written once, states read and written, the gradient written and read.
  EXPECT_GE(bound_traffic(trace, 500, 100u * 900u, 500).bytes, 100u * 900u * 95 / 100);
}

// An operation that needs more than there is cannot be helped by moving more than everything at every use.
TEST(TrafficBound, IsNeverMoreThanEverythingAtEveryUse) {
  const Trace trace = training_step({.layers = 10, .parameter = 100, .activation = 10});
  Bytes everything = 0;
  for (const TraceUse& use : trace.uses) everything += 2 * trace.block_bytes[use.block];
  EXPECT_LE(bound_traffic(trace, trace.most_at_once() / 4, 100 * everything, 500).bytes,
            everything);
}

}  // namespace
}  // namespace bottomless
