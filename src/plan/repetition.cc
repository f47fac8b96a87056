#include "plan/repetition.h"

namespace bottomless {
namespace {

constexpr uint64_t kBase = 0x9E3779B97F4A7C15ull;

constexpr uint64_t power(uint64_t base, size_t exponent) {
  uint64_t result = 1;
  for (size_t i = 0; i < exponent; ++i) result *= base;
  return result;
}

}  // namespace

bool Repetition::next(uint64_t signature) {
  uint64_t& oldest = recent_[count_ % kRun];
  run_ = run_ * kBase + signature - oldest * power(kBase, kRun);
  oldest = signature;
  ++count_;
  if (count_ < kRun) return false;
  if (first_ == 0) {
    search(run_);
    return first_ != 0;
  }
  if (run_ == first_ && count_ - began_ >= kLeast) {
    began_ = count_;
    return true;
  }
  if (count_ - began_ > 4 * period_ + kRun) start_over();  // what repeated does so no more
  return false;
}

void Repetition::search(uint64_t run) {
  const auto [known, is_new] = last_.try_emplace(run, count_);
  const uint64_t distance = is_new ? 0 : count_ - known->second;
  known->second = count_;
  if (distance >= kLeast && distance == period_) {
    ++agreed_;
  } else {
    period_ = distance >= kLeast ? distance : 0;
    agreed_ = 0;
    candidate_ = run;
  }
  if (period_ > 0 && agreed_ + 1 >= period_) {
    first_ = candidate_;
    // The run that was the first has just come for the second time, or will with the next one.
    began_ = count_;
    last_.clear();
  } else if (last_.size() > kMost) {
    start_over();
  }
}

void Repetition::start_over() {
  last_.clear();
  period_ = agreed_ = first_ = 0;
}

}  // namespace bottomless
