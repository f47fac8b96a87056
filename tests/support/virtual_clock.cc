#include "support/virtual_clock.h"

#include <algorithm>
#include <utility>

namespace bottomless {
namespace {

constexpr std::chrono::nanoseconds kPoll = std::chrono::milliseconds(2);

}  // namespace

Clock::TimePoint VirtualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

// Does not sleep until it is moved on, which would take a lock that its mover may hold, but looks again soon.
void VirtualClock::wait(CondVar& changed, Mutex& mutex, std::chrono::nanoseconds most) const {
  {
    std::lock_guard lock(mutex_);
    hook_();
  }
  changed.wait_for(mutex, std::min(most, kPoll));
}

void VirtualClock::advance(std::chrono::nanoseconds by) {
  std::lock_guard lock(mutex_);
  now_ += by;
}

void VirtualClock::advance_at_next_wait(std::chrono::nanoseconds by) {
  on_wait([this, by, pending = true, me = std::this_thread::get_id()]() mutable {
    if (std::this_thread::get_id() != me || !std::exchange(pending, false)) return;
    advance(by);
  });
}

void VirtualClock::on_wait(std::function<void()> hook) {
  std::lock_guard lock(mutex_);
  hook_ = std::move(hook);
}

}  // namespace bottomless
