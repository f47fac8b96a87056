// Work beside the program's own, such as a thread that sums up gradients: schedules know what it was foretold to use, and
// what they would have leave waits until that work lets go of it.
#include <gtest/gtest.h>

#include <vector>

#include "engine/rig.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr Bytes kParameter = 512_KiB, kSum = 256_KiB;
constexpr size_t kParameters = 16;

// Reads every parameter, makes a sum for it that another thread would add to twice, then updates parameters by their sums.
class Training {
 public:
  Training() {
    for (size_t i = 0; i < kParameters; ++i) {
      parameters_.push_back(rig_.filled(kParameter, i));
      rig_.engine().set_kind(parameters_.back(), Kind::parameter);
    }
  }

  void step() {
    std::vector<std::byte*> sums;
    for (std::byte* parameter : parameters_) {
      touch(parameter, kParameter, Access::read, "backward");
      sums.push_back(rig_.allocate(kSum, Kind::gradient));
      add_to(sums.back(), sums.size());
    }
    for (size_t i = 0; i < kParameters; ++i) {
      rig_.engine()
          .wait_for_io();  // the disk has all the time it needs: what is not there by then was not planned
      ASSERT_TRUE(rig_.holds(sums[i], kSum, i + 1));
      Pins pins(rig_.engine());
      ASSERT_TRUE(rig_.try_pin(pins, sums[i], kSum, Access::read, "update").ok());
      ASSERT_TRUE(rig_.try_pin(pins, parameters_[i], kParameter, Access::write, "update").ok());
      pins.release();
      rig_.free(sums[i]);
    }
    rig_.engine().wait_for_io();
    rig_.engine().end_step();
  }

  uint64_t left_before_let_go() const { return left_before_; }
  uint64_t left_when_let_go() const { return left_when_; }
  Rig& rig() { return rig_; }

 private:
  void touch(std::byte* at, Bytes bytes, Access access, std::string_view who) {
    rig_.engine().wait_for_io();
    Pins pins(rig_.engine());
    ASSERT_TRUE(rig_.try_pin(pins, at, bytes, access, who).ok());
  }
  void add_to(std::byte* sum, uint64_t key) {
    const Need need{.address = sum, .bytes = kSum, .access = Access::write, .overwritten = true};
    rig_.engine().announce_use({&need, 1}, "sum");
    for (int part = 0; part < 2; ++part) {
      Pins pins(rig_.engine());
      ASSERT_TRUE(rig_.engine().pin_untraced(pins, {&need, 1}, "sum").ok());
      write_pattern(sum, kSum, key);
      pins.done();
      pins.release();
      if (rig_.engine().stats().resident.of(Kind::gradient) == 0) ++left_before_;
    }
    const uint64_t before = rig_.stats().evictions;
    rig_.engine().end_announced_use(need);
    left_when_ += rig_.stats().evictions - before;
  }

  Rig rig_{{.limit = 4_MiB}};
  std::vector<std::byte*> parameters_;
  uint64_t left_before_ = 0;
  uint64_t left_when_ = 0;
};

TEST(AnnouncedUse, WhatAScheduleWouldHaveLeaveWaitsForThatWork) {
  Training training;
  for (int step = 0; step < 8; ++step) training.step();
  EXPECT_EQ(training.left_before_let_go(), 0u);
  EXPECT_GT(training.left_when_let_go(), 0u) << "not all sums fit beside the parameters";
}

TEST(AnnouncedUse, StepsWithItArePlanned) {
  Training training;
  for (int step = 0; step < 4; ++step) training.step();
  const EngineStats before = training.rig().stats();
  for (int step = 0; step < 4; ++step) training.step();
  const EngineStats after = training.rig().stats();
  EXPECT_EQ(after.plan_departures, before.plan_departures);
  EXPECT_EQ(after.schedules_made, before.schedules_made) << "every step is like the one before";
  EXPECT_GT(after.prefetches - before.prefetches,
            4 * (after.demand_fetches - before.demand_fetches));
}

// A rank that is ahead of others frees its gradients late, some only in the next step: that must not look like another step.
TEST(AnnouncedUse, WhatItReadsIsTakenForGoneWheneverItGoes) {
  Random random(71);
  BOTTOMLESS_TRACE_SEED(random);
  Rig rig({.limit = 4_MiB});
  std::vector<std::byte*> parameters, gradients;
  for (size_t i = 0; i < kParameters; ++i) {
    parameters.push_back(rig.filled(kParameter, i));
    rig.engine().set_kind(parameters.back(), Kind::parameter);
  }
  EngineStats settled;
  for (int step = 0; step < 12; ++step) {
    for (std::byte* parameter : parameters) {
      Pins pins(rig.engine());
      rig.pin(pins, parameter, kParameter, Access::read);
      pins.release();
      gradients.push_back(rig.allocate(kSum, Kind::gradient));
      rig.fill(gradients.back(), kSum, 5);
      const Need need{.address = gradients.back(), .bytes = kSum, .access = Access::read};
      rig.engine().announce_use({&need, 1}, "give");
      while (gradients.size() > random.below(6)) {
        EXPECT_TRUE(rig.engine().touch(gradients.front(), Access::read).ok());
        rig.engine().end_announced_use(
            {.address = gradients.front(), .bytes = kSum, .access = Access::read});
        rig.free(gradients.front());
        gradients.erase(gradients.begin());
      }
    }
    rig.engine().end_step();
    if (step == 3) settled = rig.stats();
  }
  EXPECT_EQ(rig.stats().schedules_made, settled.schedules_made);
  EXPECT_EQ(rig.stats().plan_departures, settled.plan_departures);
  for (std::byte* gradient : gradients) rig.free(gradient);
}

TEST(AnnouncedUse, WhatIsFreedMeanwhileIsForgotten) {
  Rig rig;
  std::byte* sum = rig.allocate(kSum);
  const Need need{.address = sum, .bytes = kSum, .access = Access::write, .overwritten = true};
  rig.engine().announce_use({&need, 1}, "sum");
  rig.free(sum);
  rig.engine().end_announced_use(need);
  EXPECT_EQ(rig.stats().live_storages, 0u);
}

// It is awaited, but whoever must have room gets it.
TEST(AnnouncedUse, IsNoPin) {
  Rig rig;
  std::byte* sum = rig.filled(kSum, 7);
  const Need need{.address = sum, .bytes = kSum, .access = Access::read};
  rig.engine().announce_use({&need, 1}, "sum");
  rig.push_out(sum);
  EXPECT_GT(rig.stats().evictions, 0u);
  EXPECT_TRUE(rig.holds(sum, kSum, 7));
}

}  // namespace
}  // namespace bottomless
