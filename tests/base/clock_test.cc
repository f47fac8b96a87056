#include "base/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "support/virtual_clock.h"

namespace bottomless {
namespace {

constexpr auto kHour = std::chrono::hours(1);

TEST(Clock, TheRealOneGoesOnAndAWaitEndsAtItsTime) {
  const Clock& clock = Clock::steady();
  const auto before = clock.now();
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  while (clock.now() - before < std::chrono::milliseconds(1))
    clock.wait(changed, mutex, std::chrono::milliseconds(1));
  EXPECT_GT(clock.now(), before);
}

TEST(Clock, AVirtualOneMovesOnlyByHand) {
  VirtualClock clock;
  const auto before = clock.now();
  EXPECT_EQ(clock.now(), before);
  clock.advance(kHour);
  EXPECT_EQ(clock.now(), before + kHour);
}

TEST(Clock, AVirtualOneAdvancesAtTheNextWaitOfThisThreadOnce) {
  VirtualClock clock;
  const auto before = clock.now();
  Mutex mutex;
  CondVar changed;
  const auto wait = [&] {
    MutexLock lock(mutex);
    clock.wait(changed, mutex, kHour);
  };
  clock.advance_at_next_wait(kHour);
  std::thread(wait).join();
  EXPECT_EQ(clock.now(), before) << "that was another thread";
  wait();
  EXPECT_EQ(clock.now(), before + kHour);
  wait();
  EXPECT_EQ(clock.now(), before + kHour);
}

TEST(Clock, WhoWaitsForAStoppedOneIsWokenByOthersOnly) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  std::thread wakes([&] {
    MutexLock lock(mutex);
    ready = true;
    changed.notify_all();
  });
  {
    MutexLock lock(mutex);
    while (!ready) kStopped.wait(changed, mutex, std::chrono::nanoseconds(0));
  }
  wakes.join();
  EXPECT_EQ(kStopped.now(), kStopped.now());
}

}  // namespace
}  // namespace bottomless
