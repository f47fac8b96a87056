// A store that is no faster than it is told: for benchmarks of what several slow disks give together, on a machine with one
// fast one.
// Thread-safety, lifetime: see Store; owns the store below it.
#pragma once
#include <bottomless/bytes.h>

#include <deque>
#include <memory>

#include "base/mutex.h"
#include "base/thread.h"
#include "io/store.h"

namespace bottomless {

class ThrottledStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> over(std::unique_ptr<Store> below, Bytes per_second);
  ~ThrottledStore() override;

  Result<Extent> allocate(Bytes bytes) override { return below_->allocate(bytes); }
  void free(const Extent& extent) override { below_->free(extent); }
  void read(const Extent& extent, Pieces into, Urgency urgency, Done done) override;
  void write(const Extent& extent, Pieces from, Urgency urgency, Done done) override;
  void hurry(const Extent& extent) override { below_->hurry(extent); }
  std::optional<Error> overdue(std::chrono::nanoseconds patience) override {
    return below_->overdue(patience);
  }
  bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept override {
    return below_->read_in_child(extent, into);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Ended {
    Clock::time_point due;
    Result<void> outcome;
    Done done;
  };

  ThrottledStore(std::unique_ptr<Store> below, Bytes per_second)
      : per_second_(static_cast<double>(per_second)), below_(std::move(below)) {}
  Clock::time_point reserve(Bytes bytes);
  Done delayed(Clock::time_point due, Done done);
  void run();

  const double per_second_;
  Mutex mutex_;
  CondVar changed_;
  Clock::time_point free_at_ BOTTOMLESS_GUARDED_BY(mutex_){};
  std::deque<Ended> ended_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool closing_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Store> below_;
  Thread thread_;
};

}  // namespace bottomless
