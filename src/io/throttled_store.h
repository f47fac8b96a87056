// A store that is no faster than it is told: for benchmarks of what several slow disks give together, on a machine with one
// fast one.
// Thread-safety, lifetime: see StoreOver.
#pragma once
#include <bottomless/bytes.h>

#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/thread.h"
#include "io/store_over.h"

namespace bottomless {

class ThrottledStore final : public StoreOver {
 public:
  static Result<std::unique_ptr<Store>> over(std::unique_ptr<Store> below, Bytes per_second);
  ~ThrottledStore() override;

  void read(const Extent& extent, Pieces into, Priority priority, Done done) override;
  void write(const Extent& extent, Pieces from, Priority priority, Done done) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Ended {
    Clock::time_point due;
    Result<void> outcome;
    Done done;
  };

  ThrottledStore(std::unique_ptr<Store> below, Bytes per_second)
      : StoreOver(std::move(below)), per_second_(static_cast<double>(per_second)) {}
  Clock::time_point reserve(Bytes bytes);
  Done delayed(Clock::time_point due, Done done);
  void run();

  const double per_second_;
  Mutex mutex_;
  CondVar changed_;
  Clock::time_point free_at_ BOTTOMLESS_GUARDED_BY(mutex_){};
  std::deque<Ended> ended_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool closing_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace bottomless
