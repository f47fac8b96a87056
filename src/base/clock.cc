#include "base/clock.h"

namespace bottomless {
namespace {

class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  void wait(CondVar& changed, Mutex& mutex, std::chrono::nanoseconds most) const override
      BOTTOMLESS_REQUIRES(mutex) {
    changed.wait_for(mutex, most);
  }
};

constexpr SteadyClock kSteady;

}  // namespace

const Clock& Clock::steady() { return kSteady; }

}  // namespace bottomless
