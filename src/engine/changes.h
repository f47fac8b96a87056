// Lets threads wait until something has changed: room was freed, a transfer ended, a pin was dropped. What it was they look
// up themselves.
// Thread-safety: under the engine's lock, which wait() gives up meanwhile.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace bottomless {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Changes {
 public:
  Changes(Mutex& mutex, const Clock& clock, std::chrono::nanoseconds timeout)
      : mutex_(mutex), clock_(clock), timeout_(timeout) {}

  // For any change, but at most for the timeout; the time counts as stall.
  void wait() BOTTOMLESS_NOT_ANALYSED {
    const double start = seconds_now();
    ++waiters_;
    clock_.wait(changed_, mutex_, timeout_);
    --waiters_;
    stall_seconds_ += seconds_now() - start;
  }
  void announce() {
    ++count_;
    if (waiters_ > 0) changed_.notify_all();
  }
  uint64_t count() const { return count_; }
  double stall_seconds() const { return stall_seconds_; }

 private:
  Mutex& mutex_;
  const Clock& clock_;
  const std::chrono::nanoseconds timeout_;
  CondVar changed_;
  uint64_t count_ = 0;
  unsigned waiters_ = 0;
  double stall_seconds_ = 0;
};

}  // namespace bottomless
