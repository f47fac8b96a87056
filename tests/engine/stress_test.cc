// Several threads over one engine with a slow store that completes in random order.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr uint64_t kThreads = 4;
constexpr Bytes kShared = 100_KiB;
constexpr size_t kSharedCount = 24;

struct Setting {
  std::string name;
  Eviction eviction;
  int rounds;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

int scaled(int rounds) { return kSanitizer ? rounds / 3 : rounds; }

class EngineStress : public testing::TestWithParam<Setting> {
 protected:
  EngineStress()
      : random_(95),
        rig_({.limit = 2_MiB,
              .frames = {.large = 32_KiB, .small = 8_KiB},
              .eviction = GetParam().eviction,
              .store = {.order = Order::random, .most_delay_us = 40, .seed = random_.seed()}}) {
    for (uint64_t i = 0; i < kSharedCount; ++i) shared_.push_back(rig_.filled(kShared, i));
  }

  void in_threads(const std::function<void(uint64_t, Random)>& body) {
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] { body(t, random_.fork(t)); });
    for (std::thread& thread : threads) thread.join();
  }

  Random random_;
  Rig rig_;
  std::vector<std::byte*> shared_;
};

// Each thread's operations fit beside those of the others, so nothing may fail.
TEST_P(EngineStress, SharedReadersAndOwnWritersSeeTheirOwnContent) {
  BOTTOMLESS_TRACE_SEED(random_);
  in_threads([&](uint64_t thread, Random random) {
    struct Own {
      std::byte* at;
      Bytes bytes;
      uint64_t key;
    };
    std::vector<Own> own;
    for (int round = 0; round < scaled(GetParam().rounds); ++round) {
      if (own.size() < 8) {
        const Bytes bytes = random.between(1, 80_KiB);
        own.push_back({rig_.filled(bytes, thread * 1000), bytes, thread * 1000});
      }
      Own& mine = random.pick(own);
      const uint64_t other = random.below(kSharedCount);
      Pins pins(rig_.engine());
      const std::vector<Need> needs{{shared_[other], kShared, Access::read},
                                    {mine.at, mine.bytes, Access::write}};
      const Result<void> pinned = rig_.engine().pin(pins, needs, "a test");
      ASSERT_TRUE(pinned.ok()) << pinned.error().message;
      ASSERT_TRUE(has_pattern(shared_[other], kShared, other));
      ASSERT_TRUE(has_pattern(mine.at, mine.bytes, mine.key));
      write_pattern(mine.at, mine.bytes, ++mine.key);
      if (random.one_in(3)) {
        Result<void*> temporary =
            rig_.engine().allocate(random.between(1, 40_KiB), Kind::activation, &pins, "a test");
        ASSERT_TRUE(temporary.ok()) << temporary.error().message;
        std::memset(temporary.value(), static_cast<int>(thread), 1);
        rig_.engine().free(temporary.value(), &pins);
      }
      if (random.one_in(4)) {
        ASSERT_TRUE(rig_.engine().charge(4_KiB, &pins, "a test").ok());
        rig_.engine().discharge(4_KiB);
      }
      pins.release();
      if (random.one_in(6)) {
        rig_.free(mine.at);
        mine = own.back();
        own.pop_back();
      }
    }
    for (const Own& each : own) {
      EXPECT_TRUE(rig_.holds(each.at, each.bytes, each.key));
      rig_.free(each.at);
    }
  });
  for (uint64_t i = 0; i < kSharedCount; ++i) EXPECT_TRUE(rig_.holds(shared_[i], kShared, i));
  EXPECT_GT(rig_.stats().evictions, 0u);
  EXPECT_EQ(rig_.stats().charged_bytes, 0u);
}

// Each operation fits alone, all of them together do not: they must take turns.
TEST_P(EngineStress, OperationsThatDoNotFitTogetherAllComeThrough) {
  BOTTOMLESS_TRACE_SEED(random_);
  in_threads([&](uint64_t, Random random) {
    for (int round = 0; round < scaled(GetParam().rounds / 3); ++round) {
      std::vector<Need> needs;
      std::vector<uint64_t> wanted;
      for (int i = 0; i < 11; ++i) {
        wanted.push_back(random.below(kSharedCount));
        needs.push_back({shared_[wanted.back()], kShared, Access::read});
      }
      Pins pins(rig_.engine());
      const Result<void> pinned = rig_.engine().pin(pins, needs, "a test");
      ASSERT_TRUE(pinned.ok()) << pinned.error().message;
      for (const uint64_t i : wanted) ASSERT_TRUE(has_pattern(shared_[i], kShared, i));
    }
  });
}

// What fault handlers do all at once.
TEST_P(EngineStress, TouchesFromAllThreadsLoseNoWrite) {
  BOTTOMLESS_TRACE_SEED(random_);
  std::byte* board = rig_.allocate(kThreads * 512_KiB);  // all of the limit by itself
  in_threads([&](uint64_t thread, Random random) {
    std::vector<uint64_t> mine(512_KiB / 4_KiB, 0);
    for (int round = 0; round < scaled(GetParam().rounds * 10); ++round) {
      const uint64_t page = random.below(mine.size());
      std::byte* at = board + thread * 512_KiB + page * 4_KiB + 64;
      uint64_t value = random.next();
      while (!try_copy_in(at, std::as_bytes(std::span(&value, 1))))
        ASSERT_TRUE(rig_.engine().touch(at, Access::write).value());
      mine[page] = value;
    }
    for (uint64_t page = 0; page < mine.size(); ++page) {
      std::byte* at = board + thread * 512_KiB + page * 4_KiB + 64;
      uint64_t value = 0;
      while (!try_copy_out(std::as_writable_bytes(std::span(&value, 1)), at))
        ASSERT_TRUE(rig_.engine().touch(at, Access::read).value());
      if (mine[page] != 0) {
        ASSERT_EQ(value, mine[page]) << "a write was lost on page " << page;
      }
    }
  });
  EXPECT_GT(rig_.stats().faults, 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, EngineStress,
                         testing::Values(Setting{"WhenNeeded", Eviction::when_needed, 1000},
                                         Setting{"Eagerly", Eviction::eagerly, 400}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
