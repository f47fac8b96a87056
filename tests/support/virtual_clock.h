// Clocks that stand still until the test moves them on, if ever. Whether a deadline has passed then depends on the test
// alone, not on how fast the machine is.
// Thread-safety: every call from any thread.
#pragma once
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace bottomless {

class VirtualClock final : public Clock {
 public:
  TimePoint now() const override;
  void wait(CondVar& changed, Mutex& mutex, std::chrono::nanoseconds most) const override
      BOTTOMLESS_REQUIRES(mutex);

  void advance(std::chrono::nanoseconds by);
  // When this thread waits next, once. It has taken the time from which it counts before that.
  void advance_at_next_wait(std::chrono::nanoseconds by);
  // Called from now on by everybody who is about to wait, with its locks held. It may look at the clock and advance it.
  void on_wait(std::function<void()> hook);

 private:
  // Recursive: the hook advances the clock.
  mutable std::recursive_mutex mutex_;
  TimePoint now_{std::chrono::hours(1)};  // not the beginning of time, which some use for "never"
  std::function<void()> hook_ = [] {};
};

// Never moves, and has nobody look at it again: one whom nobody wakes waits for ever, so a test finds a lost notification.
class StoppedClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(std::chrono::hours(1)); }
  void wait(CondVar& changed, Mutex& mutex, std::chrono::nanoseconds) const override
      BOTTOMLESS_REQUIRES(mutex) {
    changed.wait(mutex);
  }
};

inline constexpr StoppedClock kStopped;

}  // namespace bottomless
