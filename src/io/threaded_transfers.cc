#include <unistd.h>

#include <cerrno>
#include <deque>

#include "base/mutex.h"
#include "base/thread.h"
#include "io/transfers.h"

namespace bottomless {
namespace {

// For kernels and containers that forbid io_uring: a few threads, each with one plain system call
// at a time.
class ThreadedTransfers final : public Transfers {
 public:
  ~ThreadedTransfers() override {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }

  Result<void> start_threads() {
    for (Thread& thread : threads_) {
      Result<Thread> started = Thread::start("bl-transfer", [this] { run(); });
      if (!started.ok()) return std::move(started).error();
      thread = std::move(started).value();
    }
    return {};
  }

  void start(const Transfer& transfer) override {
    MutexLock lock(mutex_);
    started_.push_back(transfer);
    work_.notify_one();
  }

  void wait(std::vector<Moved>& results) override {
    MutexLock lock(mutex_);
    while (moved_.empty() && !rung_) news_.wait(mutex_);
    rung_ = false;
    results.insert(results.end(), moved_.begin(), moved_.end());
    moved_.clear();
  }

  void wake() override {
    MutexLock lock(mutex_);
    rung_ = true;
    news_.notify_one();
  }

 private:
  void run() {
    MutexLock lock(mutex_);
    for (;;) {
      while (started_.empty() && !stopping_) work_.wait(mutex_);
      if (started_.empty()) return;
      const Transfer transfer = started_.front();
      started_.pop_front();
      mutex_.unlock();
      const Moved moved{transfer.tag, carry_out(transfer)};
      mutex_.lock();
      moved_.push_back(moved);
      news_.notify_one();
    }
  }

  static int64_t carry_out(const Transfer& transfer) {
    const auto offset = static_cast<off_t>(transfer.offset);
    const ssize_t moved =
        transfer.direction == Direction::read
            ? ::pread(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset)
            : ::pwrite(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset);
    return moved >= 0 ? moved : -static_cast<int64_t>(errno);
  }

  Mutex mutex_;
  CondVar work_;
  CondVar news_;
  std::deque<Transfer> started_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::vector<Moved> moved_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool rung_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  bool stopping_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  Thread threads_[kTransferThreads];  // last: they use all of the above
};

}  // namespace

Result<std::unique_ptr<Transfers>> make_threaded_transfers() {
  auto transfers = std::make_unique<ThreadedTransfers>();
  if (Result<void> started = transfers->start_threads(); !started.ok())
    return std::move(started).error();
  return std::unique_ptr<Transfers>(std::move(transfers));
}

Result<ChosenTransfers> choose_transfers(const MakeTransfers& preferred) {
  Result<std::unique_ptr<Transfers>> made = preferred();
  if (made.ok()) return ChosenTransfers{std::move(made).value(), std::nullopt};
  Result<std::unique_ptr<Transfers>> threads = make_threaded_transfers();
  if (!threads.ok()) return std::move(threads).error();
  return ChosenTransfers{std::move(threads).value(), made.error().message};
}

}  // namespace bottomless
