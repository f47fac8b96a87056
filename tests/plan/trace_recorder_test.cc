#include "plan/trace_recorder.h"

#include <gtest/gtest.h>

#include "support/trace_maker.h"

namespace bottomless {
namespace {

TEST(TraceRecorder, StepsOfTheSameShapeHaveTheSameSignature) {
  const Network network{.layers = 5};
  EXPECT_EQ(training_step(network).signature(), training_step(network).signature());
  EXPECT_NE(training_step(network).signature(), training_step({.layers = 6}).signature());
}

TEST(TraceRecorder, KnowsWhatEachEventUsesMakesAndFrees) {
  TraceMaker maker;
  auto* lasting = maker.make(7);
  maker.end_step();
  maker.end_step();
  auto* made = maker.run_making("first", {{lasting}}, 3);
  maker.run("second", {{made}, {lasting, true}, {lasting}});
  maker.free(made);
  const Trace trace = maker.end_step();
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.names[trace.events[1].name], "second");
  ASSERT_EQ(trace.uses_of(0).size(), 2u);
  EXPECT_TRUE(trace.uses_of(0)[1].born);
  ASSERT_EQ(trace.uses_of(1).size(), 2u) << "named twice, used once";
  EXPECT_TRUE(trace.uses_of(1)[1].writes);
  EXPECT_EQ(trace.births_of(0).size(), 1u);
  ASSERT_EQ(trace.deaths_of(1).size(), 1u);
  EXPECT_FALSE(trace.storages[trace.deaths_of(1)[0]].survives);
  EXPECT_EQ(trace.storages[0].since, Since::long_ago);
  EXPECT_EQ(trace.block_bytes, (std::vector<Bytes>{7, 3}));
}

TEST(TraceRecorder, WhatIsCarriedIntoTheNextStepIsFoundWhereItWasMade) {
  const Trace trace = training_step({.layers = 3, .deferred = true});
  size_t carried = 0;
  for (const TraceStorage& storage : trace.storages) {
    if (storage.since != Since::last_step) continue;
    ASSERT_NE(storage.carried_from, kNone);
    EXPECT_EQ(trace.storages[storage.carried_from].since, Since::this_step);
    EXPECT_TRUE(trace.storages[storage.carried_from].survives);
    ++carried;
  }
  EXPECT_EQ(carried, 3u) << "the gradients";
}

TEST(TraceRecorder, AStepThatIsTooLongIsNone) {
  TraceRecorder recorder;
  for (size_t i = 0; i <= TraceRecorder::kMostEvents; ++i) recorder.begin("again", i);
  EXPECT_TRUE(recorder.end_step().events.empty());
  recorder.begin("short", 1);
  EXPECT_EQ(recorder.end_step().events.size(), 1u);
  recorder.begin("given up", 1);
  recorder.give_up();
  EXPECT_TRUE(recorder.end_step().events.empty());
}

}  // namespace
}  // namespace bottomless
