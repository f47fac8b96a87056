#include "plan/follower.h"

#include <algorithm>

namespace bottomless {

void Follower::follow(const Trace* trace, size_t at) {
  trace_ = trace;
  position_ = at;
  lost_ = departed_ = false;
}

uint32_t Follower::next(uint64_t signature) {
  std::rotate(recent_.begin(), recent_.begin() + 1, recent_.end());
  recent_.back() = signature;
  if (trace_ == nullptr) return kNone;
  const std::vector<TraceEvent>& events = trace_->events;
  if (position_ < events.size() && events[position_].signature == signature) {
    lost_ = false;
    return static_cast<uint32_t>(position_++);
  }
  lost_ = true;
  // The nearest place where the last few operations come in this order.
  for (size_t distance = 1; distance <= kWindow; ++distance) {
    const bool beyond = position_ + distance >= events.size();
    const bool before = distance > position_;
    if (beyond && before) break;
    for (const size_t event : {position_ + distance, position_ - distance}) {
      if (event >= events.size() || !agrees_before(event)) continue;
      departed_ = true;
      lost_ = false;
      position_ = event + 1;
      return static_cast<uint32_t>(event);
    }
  }
  return kNone;
}

bool Follower::agrees_before(size_t event) const {
  if (event + 1 < kInARow) return false;
  for (size_t i = 0; i < kInARow; ++i) {
    if (trace_->events[event - i].signature != recent_[kInARow - 1 - i]) return false;
  }
  return true;
}

}  // namespace bottomless
