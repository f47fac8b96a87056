// Steps that repeat: blocks are back before they are needed, leave when the schedule says so, and whatever the
// program does instead, no byte is lost.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/rig.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

// A program with more parameters than fit: reads all, then updates all, in a loop.
class Loop {
 public:
  explicit Loop(size_t parameters, RigOptions options = {.limit = 4_MiB}) : rig_(options) {
    for (size_t i = 0; i < parameters; ++i) add();
  }

  void add() {
    keys_.push_back(parameters_.size());
    parameters_.push_back(rig_.filled(kBlock, keys_.back()));
    rig_.engine().set_kind(parameters_.back(), Kind::parameter);
  }
  size_t count() const { return parameters_.size(); }

  // Before each operation the disk gets the time that it needs, however slow it is: what is there by then was planned.
  void read(size_t i, Bytes makes = kBlock / 2) {
    wait_for_io();
    Pins pins(rig_.engine());
    ASSERT_TRUE(rig_.try_pin(pins, parameters_[i], kBlock, Access::read, "read").ok());
    ASSERT_TRUE(has_pattern(parameters_[i], kBlock, keys_[i]));
    // What the operation makes, and frees.
    void* made = rig_.engine().allocate(makes, Kind::activation, &pins, "read").value();
    rig_.engine().free(made, &pins);
  }
  void update(size_t i) {
    wait_for_io();
    Pins pins(rig_.engine());
    ASSERT_TRUE(rig_.try_pin(pins, parameters_[i], kBlock, Access::write, "update").ok());
    ASSERT_TRUE(has_pattern(parameters_[i], kBlock, keys_[i]));
    write_pattern(parameters_[i], kBlock, ++keys_[i]);
  }
  void train(Bytes makes = kBlock / 2) {
    for (size_t i = 0; i < parameters_.size(); ++i) read(i, makes);
    for (size_t i = 0; i < parameters_.size(); ++i) update(i);
  }
  void evaluate() {
    for (size_t i = 0; i < parameters_.size(); i += 2) read(i);
  }
  // What was fetched without having been planned since the last call, once nothing is under way.
  uint64_t unplanned() {
    const uint64_t before = demand_;
    demand_ = rig_.stats().demand_fetches;
    return demand_ - before;
  }
  // Looks at it outside any operation.
  void look(size_t i) { ASSERT_TRUE(rig_.engine().touch(parameters_[i], Access::read).ok()); }
  void wait_for_io() { rig_.engine().wait_for_io(); }
  void end_step() { rig_.engine().end_step(); }
  Rig& rig() { return rig_; }

 private:
  Rig rig_;
  std::vector<std::byte*> parameters_;
  std::vector<uint64_t> keys_;
  uint64_t demand_ = 0;
};

TEST(Prefetcher, FromTheThirdStepOnMostIsThereBeforeItIsNeeded) {
  Loop loop(24);
  for (int step = 0; step < 8; ++step) {
    loop.train();
    loop.end_step();
    if (step == 3) loop.unplanned();
  }
  EXPECT_GT(loop.rig().stats().planned_hits, 0u);
  EXPECT_LE(loop.rig().stats().plan_departures, 1u) << "at first more is taken for new than is";
  EXPECT_GT(loop.rig().stats().prefetches, 4u * loop.unplanned());
}

TEST(Prefetcher, MovesFewerBytesThanRecency) {
  Bytes moved[2] = {};
  for (const Movement movement : {Movement::when_needed, Movement::planned}) {
    Loop loop(24, {.limit = 4_MiB, .movement = movement});
    for (int step = 0; step < 8; ++step) {
      loop.train();
      loop.end_step();
    }
    loop.wait_for_io();
    moved[static_cast<int>(movement)] =
        loop.rig().stats().read_bytes + loop.rig().stats().written_bytes;
  }
  EXPECT_LE(moved[1], moved[0]);
}

TEST(Prefetcher, StepsThatNobodyMarksAreFound) {
  Loop loop(24);
  for (int step = 0; step < 24; ++step) {
    loop.train();
    if (step % 5 == 4) loop.evaluate();
  }
  EXPECT_GT(loop.rig().stats().planned_hits, 24u);
}

TEST(Prefetcher, SeveralShapesAreKnownSideBySide) {
  Loop loop(24);
  for (int step = 0; step < 20; ++step) {
    if (step % 2 == 0) {
      loop.train();
    } else {
      loop.evaluate();
    }
    loop.end_step();
    if (step == 11) loop.unplanned();
  }
  const EngineStats stats = loop.rig().stats();
  EXPECT_GT(stats.planned_hits, 8 * loop.unplanned());
}

// One schedule for the longest serves them all: none is made for each.
TEST(Prefetcher, InputsOfAnyLengthAreOneShape) {
  Random random(33);
  BOTTOMLESS_TRACE_SEED(random);
  Loop loop(24);
  for (int step = 0; step < 40; ++step) {
    loop.train((1 + random.below(64)) * kBlock / 64);
    loop.end_step();
    if (step == 7) loop.unplanned();
  }
  EXPECT_GT(loop.rig().stats().planned_hits, 8 * loop.unplanned());
  EXPECT_LE(loop.rig().stats().schedules_made, 12u);
}

// As with experts that the data chooses: no step is like any other, and yet much of it is known.
TEST(Prefetcher, StepsThatAreAllDifferentGetNoScheduleEach) {
  Random random(44);
  BOTTOMLESS_TRACE_SEED(random);
  Loop loop(24);
  for (int step = 0; step < 40; ++step) {
    for (size_t i = 0; i < loop.count(); ++i) {
      if (!random.one_in(8)) loop.read(i);
    }
    for (size_t i = 0; i < loop.count(); ++i) loop.update(i);
    loop.end_step();
    if (step == 7) loop.unplanned();
  }
  EXPECT_GT(loop.rig().stats().planned_hits, 2 * loop.unplanned());
  EXPECT_LE(loop.rig().stats().schedules_made, 8u);
}

TEST(Prefetcher, ACycleAfterManyDifferentStepsIsPlanned) {
  Loop loop(24);
  const auto kind = [&](size_t which) {
    for (size_t i = which; i < loop.count(); i += 2) loop.read(i);
    loop.read(which);
    for (size_t i = 0; i < loop.count(); ++i) loop.update(i);
    loop.end_step();
  };
  for (size_t step = 3; step < 13; ++step) kind(step);
  for (size_t step = 0; step < 9; ++step) kind(step % 3);
  loop.unplanned();
  const uint64_t before = loop.rig().stats().planned_hits;
  for (size_t step = 0; step < 9; ++step) kind(step % 3);
  EXPECT_GT(loop.rig().stats().planned_hits - before, 4 * loop.unplanned());
}

// What one step makes and the next one frees has another size each time, too.
TEST(Prefetcher, WhatLivesOnIntoTheNextStepMayHaveAnyLength) {
  Random random(55);
  BOTTOMLESS_TRACE_SEED(random);
  Loop loop(24);
  Engine& engine = loop.rig().engine();
  void* result = nullptr;
  for (int step = 0; step < 40; ++step) {
    loop.train();
    {
      Pins pins(engine);
      void* made =
          engine.allocate((1 + random.below(4)) * kBlock, Kind::activation, &pins, "make").value();
      if (result != nullptr) engine.free(result, &pins);
      result = made;
    }
    loop.end_step();
  }
  EXPECT_LE(loop.rig().stats().schedules_made, 12u);
  Pins pins(engine);
  engine.free(result, &pins);
}

TEST(Prefetcher, WhateverTheProgramDoesInsteadNoByteIsLost) {
  Random random(2222);
  BOTTOMLESS_TRACE_SEED(random);
  Loop loop(16, {.limit = 3_MiB});
  for (int step = 0; step < 60; ++step) {
    for (size_t i = 0; i < 16; ++i) {
      if (!random.one_in(12)) loop.read(i);
      if (random.one_in(20)) loop.update(random.below(16));
    }
    for (size_t i = 16; i-- > 0;) {
      if (!random.one_in(12)) loop.update(i);
    }
    if (!random.one_in(6)) loop.end_step();
  }
  EXPECT_GT(loop.rig().stats().planned_hits, 0u);
}

// An instruction that reads across the border of two blocks needs both at once, whatever the schedule knows of them.
TEST(Prefetcher, WhatIsLookedAtTogetherStaysTogether) {
  Loop loop(24);
  Random random(11);
  BOTTOMLESS_TRACE_SEED(random);
  for (int step = 0; step < 4; ++step) {
    loop.train();
    loop.end_step();
  }
  for (int time = 0; time < 40; ++time) {
    loop.add();
    loop.read(random.below(24));
    const size_t first = random.below(loop.count() - 1);
    for (size_t i = 0; i < 12; ++i) loop.look(random.below(24));
    loop.wait_for_io();
    loop.unplanned();
    for (int again = 0; again < 10; ++again) {
      loop.look(first);
      loop.look(first + 1);
    }
    EXPECT_LE(loop.unplanned(), 2u) << first;
  }
}

TEST(Prefetcher, KeepsItsRecordsSmallAndSaysSo) {
  int told = 0;
  Loop loop(4, {.limit = 4_MiB, .recorded = true, .log = [&](LogLevel, std::string_view text) {
                  told += text.find("more operations than") != std::string_view::npos;
                }});
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 15'000; ++i) loop.read(static_cast<size_t>(i) % 4);
    loop.end_step();
  }
  EXPECT_LE(loop.rig().stats().overhead_bytes, loop.rig().stats().limit_bytes / 4);
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace bottomless
