// In which order a queue starts what it was given, seen from below: transfers that end only when the test says so.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "io/disk_queue.h"
#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/virtual_clock.h"

namespace bottomless {
namespace {

constexpr Bytes kOne = 4_KiB;  // of a request: one transfer

// What has been started, in order, and its end. Shared by the test and the queue's thread.
class Slow final : public Transfers {
 public:
  struct Log {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<Transfer> started;
    std::vector<Moved> ended;
    bool rung = false;

    void wait_for(size_t count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return started.size() >= count; });
    }
    std::vector<uint64_t> offsets() {
      std::lock_guard lock(mutex);
      std::vector<uint64_t> result;
      for (const Transfer& each : started) result.push_back(each.offset);
      return result;
    }
    void end(size_t index) {
      std::lock_guard lock(mutex);
      ended.push_back({started[index].tag, static_cast<int64_t>(started[index].memory.size())});
      changed.notify_all();
    }
  };
  explicit Slow(Log& log) : log_(log) {}

  void start(const Transfer& transfer) override {
    std::lock_guard lock(log_.mutex);
    log_.started.push_back(transfer);
    log_.changed.notify_all();
  }
  void wait(std::vector<Moved>& results) override {
    std::unique_lock lock(log_.mutex);
    log_.changed.wait(lock, [&] { return !log_.ended.empty() || log_.rung; });
    log_.rung = false;
    results.insert(results.end(), log_.ended.begin(), log_.ended.end());
    log_.ended.clear();
  }
  void wake() override {
    std::lock_guard lock(log_.mutex);
    log_.rung = true;
    log_.changed.notify_all();
  }

 private:
  Log& log_;
};

class DiskOrder : public testing::Test {
 protected:
  DiskOrder() : queue_(DiskQueue::start("bl-test", std::make_unique<Slow>(log_), clock_).value()) {}
  ~DiskOrder() override {
    for (size_t i = 0; i < completions_.expected(); ++i) {
      log_.wait_for(i + 1);
      if (!ended_.contains(i)) log_.end(i);
    }
  }

  void submit(uint64_t offset, Priority priority) {
    queue_->submit({.direction = Direction::read,
                    .fd = -1,
                    .offset = offset,
                    .pieces = {buffer_.span()},
                    .target = "a test",
                    .done = completions_.expect(),
                    .priority = priority});
  }
  void end(size_t index) {
    ended_.insert(index);
    log_.end(index);
  }
  // Requests ahead of need, as many as the queue may start and ten more, from offset 0 on.
  void fill_with_work_ahead() {
    for (uint64_t i = 0; i < DiskQueue::kDepthAhead + 10; ++i) submit(i * kOne, Priority::prefetch);
    log_.wait_for(DiskQueue::kDepthAhead);
  }

  AlignedBuffer buffer_{kOne};
  Slow::Log log_;
  std::set<size_t> ended_;
  Completions completions_;
  VirtualClock clock_;
  std::unique_ptr<DiskQueue> queue_;
};

constexpr uint64_t kUrgent = 1_GiB;
constexpr unsigned kAhead = DiskQueue::kDepthAhead;

TEST_F(DiskOrder, WorkAheadLeavesRoomForWhatIsWaitedFor) {
  fill_with_work_ahead();
  submit(kUrgent, Priority::demand);
  log_.wait_for(kAhead + 1);
  EXPECT_EQ(log_.offsets().back(), kUrgent) << "it overtook ten that came before it";
  EXPECT_EQ(log_.offsets().size(), kAhead + 1);
}

TEST_F(DiskOrder, UrgentWorkGoesFirstWhenTheDiskIsFull) {
  for (uint64_t i = 0; i < DiskQueue::kDepth; ++i) submit(i * kOne, Priority::demand);
  log_.wait_for(DiskQueue::kDepth);
  submit(2_GiB, Priority::prefetch);
  submit(kUrgent, Priority::demand);
  end(0);
  log_.wait_for(DiskQueue::kDepth + 1);
  EXPECT_EQ(log_.offsets().back(), kUrgent);
}

TEST_F(DiskOrder, WhatIsHurriedOvertakesTheRest) {
  fill_with_work_ahead();
  const uint64_t last = (kAhead + 9) * kOne;
  queue_->raise_priority(last);
  log_.wait_for(kAhead + 1);
  EXPECT_EQ(log_.offsets().back(), last);
  queue_->raise_priority(0);  // under way already: nothing to do
  end(0);
  end(1);
  log_.wait_for(kAhead + 2);
  EXPECT_EQ(log_.offsets()[kAhead + 1], kAhead * kOne) << "the rest keeps its order";
}

TEST_F(DiskOrder, TheOldestTransferTellsSinceWhenTheDiskIsSilent) {
  EXPECT_EQ(queue_->waiting_since(), std::nullopt);
  const auto first = clock_.now();
  submit(0, Priority::demand);
  while (!queue_->waiting_since()) std::this_thread::yield();
  EXPECT_EQ(queue_->waiting_since(), first);
  clock_.advance(std::chrono::seconds(1));
  submit(kOne, Priority::demand);
  log_.wait_for(2);
  EXPECT_EQ(queue_->waiting_since(), first);
  end(0);
  while (queue_->waiting_since() == first) std::this_thread::yield();
  EXPECT_EQ(queue_->waiting_since(), clock_.now());
  end(1);
  while (queue_->waiting_since()) std::this_thread::yield();
}

}  // namespace
}  // namespace bottomless
