// The making of a schedule, which takes long: others go on meanwhile, and whatever they do, no byte is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;
constexpr size_t kParameters =
    26;  // of which six fit; a step that nobody marks has 24 operations or more

// What `meanwhile` does, another thread does while a schedule is made, and the schedule waits for it.
class Planned {
 public:
  explicit Planned(Bytes limit = 4_MiB)
      : rig_({.limit = limit, .planning = [this] {
                ++schedules_;
                if (meanwhile) std::async(std::launch::async, meanwhile).get();
              }}) {
    for (size_t i = 0; i < kParameters; ++i) {
      parameters_.push_back(rig_.filled(kBlock, i));
      rig_.engine().set_kind(parameters_.back(), Kind::parameter);
    }
  }

  void read(size_t i) {
    rig_.engine().wait_for_io();
    EXPECT_TRUE(rig_.holds(parameters_[i], kBlock, i)) << i;
  }
  void step(size_t stride = 1) {
    for (size_t i = 0; i < kParameters; i += stride) read(i);
  }
  std::byte* parameter(size_t i) { return parameters_[i]; }
  int schedules() const { return schedules_; }
  Rig& rig() { return rig_; }
  Engine& engine() { return rig_.engine(); }

  std::function<void()> meanwhile;

 private:
  std::atomic<int> schedules_{0};
  Rig rig_;
  std::vector<std::byte*> parameters_;
};

TEST(Planning, OperatorsFaultsAndTransfersGoOnWhileAScheduleIsMade) {
  Planned planned;
  uint64_t fetched = 0;
  planned.meanwhile = [&] {
    const uint64_t before = planned.rig().stats().demand_fetches;
    for (size_t i = 0; i < kParameters; ++i) {
      EXPECT_TRUE(planned.rig().holds(planned.parameter(i), kBlock, i));
      EXPECT_TRUE(
          planned.engine().touch(planned.parameter(kParameters - 1 - i), Access::read).ok());
    }
    planned.rig().free(planned.rig().filled(kBlock, 77));
    planned.engine().wait_for_io();
    fetched += planned.rig().stats().demand_fetches - before;
  };
  for (int i = 0; i < 4; ++i) {
    planned.step();
    planned.engine().end_step();
  }
  EXPECT_GT(planned.schedules(), 0);
  EXPECT_GT(fetched, 0u) << "the test tests nothing";
}

TEST(Planning, OperatorsGoOnWhereTheStepEndsInTheMiddleOfAnother) {
  Planned planned;
  planned.meanwhile = [&] { planned.step(3); };
  for (int i = 0; i < 40; ++i) planned.step();  // nobody marks the steps
  EXPECT_GT(planned.schedules(), 0);
}

TEST(Planning, AScheduleThatWasMadeMeanwhileIsFollowedFromTheBeginOfTheStep) {
  Planned planned;
  for (int i = 0; i < 6; ++i) {
    planned.step();
    planned.engine().end_step();
  }
  const EngineStats before = planned.rig().stats();
  EXPECT_EQ(before.schedules_made, static_cast<uint64_t>(planned.schedules()));
  planned.step();
  const EngineStats after = planned.rig().stats();
  EXPECT_GT(after.planned_hits, before.planned_hits);
  EXPECT_LE(after.demand_fetches - before.demand_fetches, 1u);
}

TEST(Planning, WhatDiesOrIsBornMeanwhileIsNotTakenForWhatItWas) {
  Planned planned;
  std::vector<std::byte*> carried;  // made in each step, and freed in the next one
  planned.meanwhile = [&] {
    for (std::byte* each : carried) planned.rig().free(each);
    carried.clear();
    for (int i = 0; i < 3; ++i) {
      carried.push_back(planned.rig().filled(kBlock, 50));
      EXPECT_TRUE(planned.rig().holds(carried.back(), kBlock, 50));
    }
  };
  for (int i = 0; i < 8; ++i) {
    planned.step();
    for (std::byte* each : carried) planned.rig().free(each);
    carried.clear();
    for (int n = 0; n < 2; ++n) carried.push_back(planned.rig().filled(kBlock / 2, 60));
    for (std::byte* each : carried) EXPECT_TRUE(planned.rig().holds(each, kBlock / 2, 60));
    planned.engine().end_step();
  }
  for (std::byte* each : carried) planned.rig().free(each);
  EXPECT_GT(planned.schedules(), 1);
}

TEST(Planning, AStepThatEndsMeanwhileIsPlannedToo) {
  Planned planned;
  std::atomic<bool> within{false};
  planned.meanwhile = [&] {
    if (within.exchange(true)) return;
    planned.step(2);  // another shape
    planned.engine().end_step();
    planned.step(2);
    planned.engine().end_step();
    within = false;
  };
  for (int i = 0; i < 6; ++i) {
    planned.step();
    planned.engine().end_step();
  }
  EXPECT_GT(planned.schedules(), 1);
  EXPECT_LE(planned.rig().stats().schedules_made, static_cast<uint64_t>(planned.schedules()));
}

TEST(Planning, ThreadsThatEndStepsAtTheSameTimeLoseNothing) {
  Planned planned(6_MiB);
  Random random(7);
  const uint64_t seed = random.next();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      uint64_t state = seed + t;
      for (int i = 0; i < 150; ++i) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        const size_t which = (state >> 33) % kParameters;
        EXPECT_TRUE(planned.rig().holds(planned.parameter(which), kBlock, which));
        if (state >> 61 == 0) planned.engine().end_step();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kParameters; ++i) planned.read(i);
}

}  // namespace
}  // namespace bottomless
