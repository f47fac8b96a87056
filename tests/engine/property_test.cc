// Random programs against a model, over a fake store in several moods and over a real one: no byte is ever lost, and the
// limit is never exceeded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>

#include "engine/churn.h"
#include "engine/rig.h"
#include "io/disk_store.h"
#include "support/sanitizer.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

struct Setting {
  std::string name;
  RigOptions rig;
  int steps;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

// A sanitizer makes each step several times slower; its own findings do not need as many. The kernel takes minutes for the
// longest, which BOTTOMLESS_ALL_CASES=1 runs whole.
int scaled(int steps) {
  const char* all = std::getenv("BOTTOMLESS_ALL_CASES");
  if (kSanitizer) return std::min(steps / 4, 50000);
  return all != nullptr && std::string_view(all) == "1" ? steps : std::min(steps, 100000);
}

void run(Churn& churn, Engine& engine, int steps) {
  for (int step = 0; step < steps; ++step) {
    churn.step();
    if (churn.failed()) FAIL() << "at step " << step;
  }
  churn.check_everything();
  EXPECT_GT(engine.stats().evictions, 0u) << "the test tests nothing";
  EXPECT_GT(engine.stats().demand_fetches, 0u);
  EXPECT_GT(engine.stats().prefetches, 0u);
}

class EngineProperty : public testing::TestWithParam<Setting> {};

TEST_P(EngineProperty, NoByteIsLostAndTheLimitHolds) {
  Random random(91);
  BOTTOMLESS_TRACE_SEED(random);
  RigOptions options = GetParam().rig;
  options.store.seed = random.seed();
  Rig rig(options);
  Churn churn(rig.engine(), options.limit, random.fork(0));
  run(churn, rig.engine(), scaled(GetParam().steps));
}

constexpr FrameSizes kTiny{.large = 16_KiB, .small = 4_KiB};
constexpr FrameSizes kMixed{.large = 64_KiB, .small = 16_KiB};
constexpr FrameSizes kEqual{.large = 64_KiB, .small = 64_KiB};
const MemoryStoreOptions kShuffled{.order = Order::random, .most_delay_us = 60};

INSTANTIATE_TEST_SUITE_P(
    Settings, EngineProperty,
    testing::Values(
        // Two halves of a million operations, for two cores.
        Setting{"Long", {.limit = 320_KiB, .frames = kTiny}, 500000},
        Setting{"LongOdd", {.limit = 320_KiB + 777, .frames = kTiny}, 500000},
        Setting{"Tiny", {.limit = 1_MiB, .frames = kTiny}, 20000},
        Setting{"TinyShuffled", {.limit = 1_MiB, .frames = kTiny, .store = kShuffled}, 20000},
        Setting{
            "TinyEager", {.limit = 1_MiB, .frames = kTiny, .eviction = Eviction::eagerly}, 20000},
        Setting{"Odd", {.limit = 1_MiB + 12345, .frames = kTiny, .fixed_overhead = 4321}, 20000},
        Setting{"Mixed", {.limit = 4_MiB, .frames = kMixed}, 30000},
        Setting{"MixedShuffled", {.limit = 4_MiB, .frames = kMixed, .store = kShuffled}, 10000},
        Setting{
            "MixedEager",
            {.limit = 4_MiB, .frames = kMixed, .eviction = Eviction::eagerly, .store = kShuffled},
            10000},
        Setting{"OneFrameSize", {.limit = 4_MiB, .frames = kEqual}, 20000}),
    [](const auto& info) { return info.param.name; });

TEST(EnginePropertyOnDisk, NoByteIsLostAndTheLimitHolds) {
  Random random(92);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory a, b;
  Result<std::unique_ptr<DiskStore>> store =
      DiskStore::open({.directories = {a.path(), b.path()}, .limit = 256_MiB});
  ASSERT_TRUE(store.ok()) << store.error().message;
  const RigOptions options{.limit = 4_MiB, .frames = kMixed};
  const auto engine = make_engine(options, *store.value());
  Churn churn(*engine, options.limit, random.fork(0));
  run(churn, *engine, scaled(10000));
}

}  // namespace
}  // namespace bottomless
