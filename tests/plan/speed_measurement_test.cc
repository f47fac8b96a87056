#include "plan/speed_measurement.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

// Work of 0.1 s on two threads.
constexpr unsigned kThreads = 2;
constexpr PassTime kAlone{.wall_seconds = 0.1, .processor_seconds = 0.2};
constexpr PassTime kBesideOthers{.wall_seconds = 0.4, .processor_seconds = 0.2};

// How many such passes it asks for.
int passes_until_done(SpeedMeasurement& measurement, const PassTime& pass) {
  int passes = 0;
  for (; !measurement.is_done(); ++passes) measurement.add(pass);
  return passes;
}

TEST(SpeedMeasurement, IsShortOnAQuietMachine) {
  SpeedMeasurement measurement(kThreads);
  EXPECT_EQ(passes_until_done(measurement, {0.125, 0.25}), 5);
  EXPECT_EQ(measurement.speed(), (SpeedRange{8, 8, true}));
  SpeedMeasurement of_short_passes(kThreads);
  EXPECT_EQ(passes_until_done(of_short_passes, {0.015625, 0.03125}), 32);
}

TEST(SpeedMeasurement, TakesLongerBesideOthers) {
  SpeedMeasurement measurement(kThreads);
  EXPECT_EQ(passes_until_done(measurement, kBesideOthers), 8);
  EXPECT_FALSE(measurement.speed().is_quiet);
}

TEST(SpeedMeasurement, WaitsForTheOthersToEnd) {
  SpeedMeasurement measurement(kThreads);
  for (int pass = 0; pass < 4; ++pass) measurement.add(kBesideOthers);
  passes_until_done(measurement, kAlone);
  EXPECT_TRUE(measurement.speed().is_quiet);
  EXPECT_DOUBLE_EQ(measurement.speed().low, 10);
  EXPECT_DOUBLE_EQ(measurement.speed().high, 10);
}

TEST(SpeedMeasurement, IsShortWhereTheMachineIsKnownToBeBusy) {
  SpeedMeasurement measurement(kThreads, MeasurementTime::short_one());
  EXPECT_EQ(passes_until_done(measurement, kBesideOthers), 2);
}

TEST(SpeedMeasurement, BesideOthersReachesFromTheWallClockToTheProcessorTime) {
  SpeedMeasurement measurement(kThreads);
  measurement.add({0.4, 0.2});
  measurement.add({0.25, 0.21});
  measurement.add({0.5, 0.19});
  const SpeedRange speed = measurement.speed();
  EXPECT_FALSE(speed.is_quiet);
  EXPECT_DOUBLE_EQ(speed.low, 4);    // the best by the wall clock: that was reached
  EXPECT_DOUBLE_EQ(speed.high, 10);  // the median by processor time
}

// Two threads that are interrupted in turns wait for each other, and spin meanwhile.
TEST(SpeedMeasurement, IsNotMisledByThreadsThatSpin) {
  SpeedMeasurement measurement(kThreads);
  constexpr PassTime kSpinning{.wall_seconds = 2, .processor_seconds = 1.6};
  constexpr PassTime kOneThread{
      .wall_seconds = 0.5, .processor_seconds = 0.2, .threads = PassThreads::one};
  measurement.add(kSpinning);
  EXPECT_TRUE(measurement.wants_one_thread());
  measurement.add(kOneThread);
  EXPECT_FALSE(measurement.wants_one_thread());
  EXPECT_DOUBLE_EQ(measurement.speed().low, 2);
  EXPECT_DOUBLE_EQ(measurement.speed().high, 10);
  EXPECT_FALSE(measurement.speed().is_quiet);
}

TEST(SpeedMeasurement, NeedsNoPassOfOneThreadWhereNothingDisturbs) {
  SpeedMeasurement measurement(kThreads);
  EXPECT_FALSE(measurement.wants_one_thread());
  measurement.add(kAlone);
  EXPECT_FALSE(measurement.wants_one_thread());
  SpeedMeasurement of_one(1);
  of_one.add(kBesideOthers);
  EXPECT_FALSE(of_one.wants_one_thread());
}

// The same work in a noisy and in a quiet moment: the ranges meet, and the ratio of two kinds of work stays.
TEST(SpeedMeasurement, HasTheSameHighestSpeedInNoisyMoments) {
  for (const double busy : {1.0, 1.3, 4.0, 20.0}) {
    SpeedMeasurement slow(kThreads), fast(kThreads);
    passes_until_done(slow, {0.1 * busy, 0.2});
    passes_until_done(fast, {0.05, 0.1});
    EXPECT_NEAR(slow.speed().high, 10, 1e-9) << busy;
    EXPECT_NEAR(fast.speed().high / slow.speed().high, 2, 1e-9) << busy;
    EXPECT_LE(slow.speed().low, slow.speed().high);
  }
}

TEST(SpeedMeasurement, OfNothingIsZero) {
  EXPECT_EQ(SpeedMeasurement(kThreads).speed(), SpeedRange{});
  SpeedMeasurement coarse(kThreads);  // a clock that did not move
  coarse.add({});
  EXPECT_EQ(coarse.speed(), SpeedRange{});
}

TEST(SpeedRange, OfAQuietMomentReplacesOthers) {
  constexpr SpeedRange kBusy{2, 9}, kBusier{1, 12}, kQuiet{8, 10, true}, kQuietToo{7, 9, true};
  EXPECT_EQ(merged(kBusy, kQuiet), kQuiet);
  EXPECT_EQ(merged(kQuiet, kBusy), kQuiet);
  EXPECT_EQ(merged(kQuiet, kQuietToo), kQuietToo);
  EXPECT_EQ(merged(kBusy, kBusier), (SpeedRange{2, 12}));
  EXPECT_EQ(merged({10, 11}, kBusy), (SpeedRange{10, 10}));
  EXPECT_EQ(merged({}, kBusy), kBusy);
}

TEST(StepFloor, FallsWithAStepThatIsFaster) {
  StepFloor floor(10);
  EXPECT_DOUBLE_EQ(floor.share_of(20), 0.5);
  EXPECT_DOUBLE_EQ(floor.share_of(5), 1);  // "192 % of the hardware"
  EXPECT_DOUBLE_EQ(floor.share_of(10), 0.5);
  EXPECT_DOUBLE_EQ(floor.seconds(), 5);
}

}  // namespace
}  // namespace bottomless
