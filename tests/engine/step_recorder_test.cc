#include "engine/step_recorder.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

StepRecord of_events(size_t count) {
  StepRecord record;
  record.trace.events.resize(count);
  return record;
}

TEST(StepRecorder, TellsTheRateOfTheDiskWhileItWasBusy) {
  StepRecorder recorder(true, 1_MiB);
  recorder.add({.asked = 0, .ready = 1});
  recorder.disk_begins(2);
  recorder.disk_ends(4);
  recorder.end_step(of_events(1), recorder.take_moments(), 10, 600);
  EXPECT_EQ(recorder.last().rates.both, 300);
  EXPECT_EQ(recorder.last().ended, 10);
}

TEST(StepRecorder, ATransferUnderWayCountsUpToTheEndOfTheStepAndThenForTheNext) {
  StepRecorder recorder(true, 1_MiB);
  recorder.add({});
  recorder.disk_begins(8);
  recorder.end_step(of_events(1), recorder.take_moments(), 10, 100);
  EXPECT_EQ(recorder.last().rates.both, 50);
  recorder.add({});
  recorder.disk_ends(12);
  recorder.end_step(of_events(1), recorder.take_moments(), 20, 400);
  EXPECT_EQ(recorder.last().rates.both, 150);
}

TEST(StepRecorder, AStepOfWhichMomentsAreMissingIsNotKept) {
  StepRecorder recorder(true, sizeof(Moment));
  recorder.add({});
  recorder.end_step(of_events(1), recorder.take_moments(), 1, 0);
  for (int i = 0; recorder.takes_more(); ++i) recorder.add({});
  recorder.end_step(of_events(5), recorder.take_moments(), 2, 0);
  EXPECT_EQ(recorder.last().moments.size(), 1u) << "the one before is still told";
}

TEST(StepRecorder, SwitchedOffKeepsNothing) {
  StepRecorder recorder(false, 1_MiB);
  EXPECT_FALSE(recorder.takes_more());
  recorder.end_step(of_events(0), {}, 1, 0);
  EXPECT_TRUE(recorder.last().empty());
}

}  // namespace
}  // namespace bottomless
