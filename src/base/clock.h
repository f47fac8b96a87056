// Says what time it is to whoever decides that something is late. Tests pass one of their own and move it on by hand: with
// it stopped nothing is ever late, however slow the machine. What is measured for statistics does not go through it.
// Thread-safety: every call from any thread.
// Lifetime: outlives those who were given it.
#pragma once
#include <chrono>

#include "base/mutex.h"

namespace bottomless {

class Clock {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  virtual TimePoint now() const = 0;
  // As CondVar::wait_for, by the time of this clock. May return earlier: the caller looks at the clock again.
  virtual void wait(CondVar& changed, Mutex& mutex, std::chrono::nanoseconds most) const
      BOTTOMLESS_REQUIRES(mutex) = 0;

  // The real one. Never destroyed: threads may use it until the process ends.
  static const Clock& steady();

 protected:
  ~Clock() = default;
};

}  // namespace bottomless
