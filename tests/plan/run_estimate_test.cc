// Sizes and speeds in, bytes and seconds out: checked against sums made by hand.
#include "plan/run_estimate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random.h"

namespace bottomless {
namespace {

// 1,000 million parameters in float32 with Adam: 4 + 4 + 8 GB, and 0.8 GB of activations.
constexpr RunShape kShape{.parameters = 1'000'000'000,
                          .trained = 1'000'000'000,
                          .largest_layer = 50'000'000,
                          .layers = 10,
                          .hidden = 1000,
                          .vocabulary = 1000,
                          .rows = 1,
                          .micro_batches = 2,
                          .length = 1000,
                          .kept_per_unit = 10};
constexpr RunMachine kMachine{.memory_limit = 4'000'000'000,
                              .disk_free = 100'000'000'000,
                              .read_rate = 2e9,
                              .write_rate = 1e9,
                              .both_rate = 2e9,
                              .flops = 1e12};

TEST(RunEstimate, AddsUpToWhatTheRunNeeds) {
  const RunEstimate found = estimate(kShape, kMachine);
  EXPECT_EQ(found.of(Kind::parameter).all(), 4'000'000'000u);
  EXPECT_EQ(found.of(Kind::gradient).all(), 4'000'000'000u);
  EXPECT_EQ(found.of(Kind::state).all(), 8'000'000'000u);
  EXPECT_EQ(found.of(Kind::activation).all(), 800'000'000u);
  // The largest layer and its gradient, and 1,000 tokens of 10,000 numbers.
  EXPECT_EQ(found.of(Kind::other).in_memory, 400'000'000u + 40'000'000u);
  EXPECT_EQ(found.all.in_memory, 3'600'000'000u);
  EXPECT_EQ(found.all.on_disk, 16'800'000'000u + 440'000'000u - 3'600'000'000u);
}

TEST(RunEstimate, KeepsWhatMovesMostInMemory) {
  const RunEstimate found = estimate(kShape, kMachine);
  const Bytes away = 4'000'000'000u - (3'600'000'000u - 440'000'000u);
  EXPECT_EQ(found.of(Kind::parameter).on_disk, away);
  EXPECT_EQ(found.of(Kind::parameter).read, 2 * away);
  EXPECT_EQ(found.of(Kind::parameter).written, away);
  EXPECT_EQ(found.of(Kind::state).read, 8'000'000'000u);
  EXPECT_EQ(found.of(Kind::state).written, 8'000'000'000u);
}

TEST(RunEstimate, LeavesOutWhatNoTokenIsMultipliedWith) {
  RunShape shape = kShape;
  shape.idle = shape.idle_trained = 400'000'000;  // experts that are not chosen
  const RunEstimate found = estimate(shape, kMachine);
  EXPECT_NEAR(found.products, 2000 * 6 * 0.6e9, 1);
  EXPECT_NEAR(found.computing_seconds, 2000 * (3.6e9 + 12.0 * 10 * 1000 * 1000) / 1e12, 1e-9);
  EXPECT_EQ(found.all.on_disk, estimate(kShape, kMachine).all.on_disk);
}

TEST(RunEstimate, IsARangeWhereTheProcessorWasBusy) {
  RunMachine machine = kMachine;
  EXPECT_EQ(estimate(kShape, machine).computing_seconds_most,
            estimate(kShape, machine).computing_seconds);
  machine.flops_least = machine.flops / 4;
  const RunEstimate found = estimate(kShape, machine);
  EXPECT_DOUBLE_EQ(found.computing_seconds_most, 4 * found.computing_seconds);
  EXPECT_EQ(found.seconds, estimate(kShape, kMachine).seconds) << "it says what is best";
}

TEST(RunEstimate, TakesTheSlowerOfComputingAndMoving) {
  RunEstimate found = estimate(kShape, kMachine);
  // Six operations a parameter and token, and attention.
  EXPECT_NEAR(found.computing_seconds, 2000 * (6e9 + 12.0 * 10 * 1000 * 1000) / 1e12, 1e-9);
  const double read = 2 * 840e6 + 4e9 + 8e9 + 0.8e9, written = 840e6 + 4e9 + 8e9 + 0.8e9;
  EXPECT_NEAR(found.disk_seconds, (read + written) / 2e9, 1e-6);
  EXPECT_EQ(found.seconds, found.disk_seconds);
  EXPECT_EQ(found.verdict, RunVerdict::disk_limits);
  EXPECT_NEAR(found.written_per_hour, written * 3600 / found.seconds, 1);
  EXPECT_NEAR(found.days_of_drive, 600e12 / (found.written_per_hour * 24), 1e-6);
  RunMachine fast = kMachine;
  fast.read_rate = fast.write_rate = fast.both_rate = 1e12;
  found = estimate(kShape, fast);
  EXPECT_EQ(found.verdict, RunVerdict::computing_limits);
  EXPECT_EQ(found.seconds, found.computing_seconds);
  EXPECT_NEAR(found.tokens_per_second, 2000 / found.seconds, 1e-6);
}

TEST(RunEstimate, MovesNothingWhereAllFits) {
  RunMachine large = kMachine;
  large.memory_limit = 40'000'000'000;
  const RunEstimate found = estimate(kShape, large);
  EXPECT_EQ(found.verdict, RunVerdict::fits);
  EXPECT_EQ(found.all.on_disk + found.all.read + found.all.written, 0u);
  EXPECT_TRUE(std::isinf(found.days_of_drive));
}

TEST(RunEstimate, OfAdaptersWritesNoParameters) {
  RunShape adapters = kShape;
  adapters.trained = 1'000'000;
  const RunEstimate found = estimate(adapters, kMachine);
  EXPECT_EQ(found.of(Kind::state).all(), 8'000'000u);
  EXPECT_LT(found.of(Kind::parameter).written, found.of(Kind::parameter).read / 1000);
  EXPECT_LT(found.computing_seconds, 0.7 * estimate(kShape, kMachine).computing_seconds);
}

TEST(RunEstimate, OfUpdatesInTheBackwardPassHasNoGradientsToKeep) {
  RunShape shape = kShape;
  shape.gradients = Gradients::used_up_at_once;
  EXPECT_EQ(estimate(shape, kMachine).of(Kind::gradient).all(), 0u);
}

TEST(RunEstimate, KnowsWhatCannotWork) {
  RunMachine machine = kMachine;
  machine.memory_limit = estimate(kShape, kMachine).least_memory;
  EXPECT_TRUE(estimate(kShape, machine).can_run());
  machine.memory_limit -= 1;
  EXPECT_EQ(estimate(kShape, machine).verdict, RunVerdict::too_little_memory);
  machine = kMachine;
  machine.disk_free = estimate(kShape, kMachine).all.on_disk;
  EXPECT_TRUE(estimate(kShape, machine).can_run());
  machine.disk_free -= 1;
  EXPECT_EQ(estimate(kShape, machine).verdict, RunVerdict::too_little_disk);
}

// More memory never makes it slower or moves more, and nothing gets lost between the tiers.
TEST(RunEstimate, OnlyImprovesWithMemory) {
  Random random(97);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 200; ++i) {
    RunShape shape = kShape;
    shape.parameters = random.between(1'000, 100'000'000'000);
    shape.trained = random.below(shape.parameters + 1);
    shape.largest_layer = shape.parameters / random.between(1, 100);
    shape.rows = random.between(1, 64);
    shape.vocabulary = random.below(200'000);
    shape.state_bytes = static_cast<double>(random.below(17));
    RunMachine machine = kMachine;
    machine.memory_limit = random.between(1, 1ull << 38);
    const RunEstimate less = estimate(shape, machine);
    machine.memory_limit *= 2;
    const RunEstimate more = estimate(shape, machine);
    EXPECT_LE(more.all.on_disk, less.all.on_disk);
    EXPECT_LE(more.all.read + more.all.written, less.all.read + less.all.written);
    EXPECT_LE(more.seconds, less.seconds);
    EXPECT_NEAR(static_cast<double>(more.all.all()), static_cast<double>(less.all.all()), 10);
    if (less.can_run()) {
      EXPECT_LE(less.all.in_memory, machine.memory_limit / 2);
    }
  }
}

TEST(RunEstimate, OfOneOfSeveralRanksIsOfItsShares) {
  RunShape share = kShape;
  share.parameter_share = share.gradient_share = share.state_share = 0.25;
  const RunEstimate all = estimate(kShape, kMachine), found = estimate(share, kMachine);
  for (const Kind kind : {Kind::parameter, Kind::gradient, Kind::state})
    EXPECT_EQ(found.of(kind).all(), all.of(kind).all() / 4);
  EXPECT_EQ(found.of(Kind::activation).all(), all.of(Kind::activation).all());
  EXPECT_EQ(found.computing_seconds, all.computing_seconds);
}

TEST(RunEstimate, OfSeveralRanksCountsWhatEachReceives) {
  RunShape shape = kShape;
  EXPECT_EQ(estimate(shape, kMachine).received, 0u);
  shape.ranks = 4;
  shape.parameter_share = shape.gradient_share = shape.state_share = 0.25;
  // 4 GB of gradients, and of parameters once, or once more for the backward pass: three quarters of that are others'.
  shape.gathered = Gathered::kept;
  EXPECT_EQ(estimate(shape, kMachine).received, 6'000'000'000u);
  shape.gathered = Gathered::given_up;
  EXPECT_EQ(estimate(shape, kMachine).received, 9'000'000'000u);
  // Of frozen parameters nothing, or both passes.
  shape.trained = 0;
  RunMachine small = kMachine;
  small.memory_limit = 1'000'000'000;  // no room but for the rank's own share
  EXPECT_EQ(estimate(shape, small).received, 6'000'000'000u);
  shape.gathered = Gathered::kept;
  EXPECT_EQ(estimate(shape, small).received, 0u);
  // Where there is room for all of it, nothing is given up.
  shape.trained = shape.parameters;
  shape.gathered = Gathered::given_up;
  RunMachine large = kMachine;
  large.memory_limit = 40'000'000'000;
  EXPECT_EQ(estimate(shape, large).received, 6'000'000'000u);
}

TEST(RunEstimate, TakesTheNetworkWhereThatIsSlowest) {
  RunShape shape = kShape;
  shape.ranks = 2;
  shape.gathered = Gathered::kept;
  RunMachine machine = kMachine;
  EXPECT_EQ(estimate(shape, machine).network_seconds, 0) << "not known";
  machine.network_rate = 1e8;
  const RunEstimate found = estimate(shape, machine);
  EXPECT_NEAR(found.network_seconds, 4e9 / 1e8, 1e-9);
  EXPECT_EQ(found.seconds, found.network_seconds);
  EXPECT_EQ(found.verdict, RunVerdict::network_limits);
  machine.network_rate = 1e12;
  EXPECT_EQ(estimate(shape, machine).verdict, RunVerdict::disk_limits);
}

}  // namespace
}  // namespace bottomless
