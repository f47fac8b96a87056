#include "io/disk_queue.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "io/disk_store.h"
#include "io/scratch_file.h"
#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/random.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

std::unique_ptr<DiskQueue> start_queue(std::unique_ptr<Transfers> transfers) {
  Result<std::unique_ptr<DiskQueue>> queue = DiskQueue::start("bl-test", std::move(transfers));
  EXPECT_TRUE(queue.ok()) << queue.error().message;
  return std::move(queue).value();
}

std::unique_ptr<Transfers> real_transfers() {
  return choose_transfers(DiskStoreOptions{}.transfers).value().transfers;
}

class Queue : public testing::Test {
 protected:
  void SetUp() override {
    Result<ScratchFile> file = ScratchFile::open(directory_.path());
    ASSERT_TRUE(file.ok()) << file.error().message;
    file_ = std::make_unique<ScratchFile>(std::move(file).value());
    ASSERT_TRUE(file_->grow(192_MiB).ok());
    queue_ = start_queue(real_transfers());
  }
  DiskRequest request(Direction direction, uint64_t offset,
                      std::vector<std::span<std::byte>> pieces) {
    return {direction,         file_->fd(),     offset,
            std::move(pieces), "the test file", completions_.expect()};
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ScratchFile> file_;
  Completions completions_;
  std::unique_ptr<DiskQueue> queue_;
};

TEST_F(Queue, PiecesFollowEachOtherInTheFile) {
  AlignedBuffer first(12_KiB), second(2_MiB + 4_KiB), third(4_KiB);
  first.fill(1);
  second.fill(2);
  third.fill(3);
  queue_->submit(request(Direction::write, 1_MiB, {first.span(), second.span(), third.span()}));
  completions_.wait_for_all();
  ASSERT_TRUE(completions_.outcome(0).ok()) << completions_.outcome(0).error().message;

  // Read with other cuts, so that only the order in the file can make it right.
  AlignedBuffer whole(first.size() + second.size() + third.size());
  queue_->submit(
      request(Direction::read, 1_MiB, {whole.span().first(1_MiB), whole.span().subspan(1_MiB)}));
  completions_.wait_for_all();
  ASSERT_TRUE(completions_.outcome(1).ok());
  EXPECT_TRUE(std::equal(first.span().begin(), first.span().end(), whole.data()));
  EXPECT_TRUE(std::equal(second.span().begin(), second.span().end(), whole.data() + first.size()));
  EXPECT_TRUE(std::equal(third.span().begin(), third.span().end(),
                         whole.data() + first.size() + second.size()));
}

TEST_F(Queue, ARequestDeeperThanTheQueueIsCutAndCompleted) {
  AlignedBuffer buffer((DiskQueue::kDepth + 4) * DiskQueue::kTransferBytes);
  buffer.fill(9);
  queue_->submit(request(Direction::write, 0, {buffer.span()}));
  completions_.wait_for_all();
  ASSERT_TRUE(completions_.outcome(0).ok());
  AlignedBuffer back(buffer.size());
  queue_->submit(request(Direction::read, 0, {back.span()}));
  completions_.wait_for_all();
  ASSERT_TRUE(completions_.outcome(1).ok());
  EXPECT_EQ(back.mismatch(9), back.size());
}

TEST_F(Queue, ARequestWithoutPiecesIsDone) {
  queue_->submit(request(Direction::write, 0, {}));
  completions_.wait_for_all();
  EXPECT_TRUE(completions_.outcome(0).ok());
}

TEST_F(Queue, ManyThreadsMaySubmit) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 50;
  std::vector<AlignedBuffer> buffers;
  for (uint64_t i = 0; i < kThreads * kEach; ++i) buffers.emplace_back(8_KiB).fill(i);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = t * kEach; i < (t + 1) * kEach; ++i) {
        queue_->submit(request(Direction::write, i * 8_KiB, {buffers[i].span()}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  completions_.wait_for_all();
  EXPECT_TRUE(completions_.each_completed_once());
  for (uint64_t i = 0; i < kThreads * kEach; ++i) {
    ASSERT_TRUE(completions_.outcome(i).ok());
    queue_->submit(request(Direction::read, i * 8_KiB, {buffers[i].span()}));
  }
  completions_.wait_for_all();
  for (uint64_t i = 0; i < kThreads * kEach; ++i)
    EXPECT_EQ(buffers[i].mismatch(i), buffers[i].size()) << i;
}

TEST_F(Queue, TheDestructorCarriesOutWhatWasSubmitted) {
  std::vector<AlignedBuffer> buffers;
  for (uint64_t i = 0; i < 40; ++i) {
    buffers.emplace_back(256_KiB).fill(i);
    queue_->submit(request(Direction::write, i * 256_KiB, {buffers.back().span()}));
  }
  queue_.reset();
  EXPECT_TRUE(completions_.each_completed_once());
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(completions_.outcome(i).ok());
    AlignedBuffer back(256_KiB);
    ASSERT_EQ(::pread(file_->fd(), back.data(), 256_KiB, static_cast<off_t>(i * 256_KiB)), 256_KiB);
    ASSERT_EQ(back.mismatch(i), back.size());
  }
}

TEST_F(Queue, ACallbackMaySubmitTheNextRequest) {
  AlignedBuffer buffer(16_KiB), back(16_KiB);
  buffer.fill(5);
  DiskRequest write = request(Direction::write, 0, {buffer.span()});
  DiskRequest read = request(Direction::read, 0, {back.span()});
  write.done = [&, done = std::move(write.done)](Result<void> outcome) {
    done(std::move(outcome));
    queue_->submit(std::move(read));
  };
  queue_->submit(std::move(write));
  completions_.wait_for_all();
  EXPECT_TRUE(completions_.outcome(0).ok());
  EXPECT_TRUE(completions_.outcome(1).ok());
  EXPECT_EQ(back.mismatch(5), back.size());
}

TEST_F(Queue, RandomRequestsReadBackWhatTheFileMustHold) {
  Random random(71);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr uint64_t kRegions = 32;
  constexpr Bytes kRegion = 2_MiB;
  std::vector<uint64_t> keys(kRegions, 0);
  for (uint64_t round = 1; round <= 12; ++round) {
    std::vector<AlignedBuffer> buffers;
    std::vector<std::pair<uint64_t, bool>> started;
    buffers.reserve(kRegions);
    const size_t first = completions_.expected();
    for (uint64_t region = 0; region < kRegions; ++region) {
      const bool write = keys[region] == 0 || random.one_in(2);
      buffers.emplace_back(256_KiB);
      if (write) buffers.back().fill(keys[region] = round * kRegions + region + 1);
      std::vector<std::span<std::byte>> pieces;
      for (std::span<std::byte> rest = buffers.back().span(); !rest.empty();) {
        const size_t piece = std::min<size_t>(rest.size(), random.between(1, 20) * 4_KiB);
        pieces.push_back(rest.first(piece));
        rest = rest.subspan(piece);
      }
      started.emplace_back(region, write);
      queue_->submit(
          request(write ? Direction::write : Direction::read, region * kRegion, std::move(pieces)));
    }
    completions_.wait_for_all();
    for (size_t i = 0; i < started.size(); ++i) {
      ASSERT_TRUE(completions_.outcome(first + i).ok());
      ASSERT_EQ(buffers[i].mismatch(keys[started[i].first]), buffers[i].size());
    }
  }
}

// Completes all that was started in one batch, and only once the queue has been told to end.
class LateBatch final : public Transfers {
 public:
  void start(const Transfer& transfer) override {
    started_.push_back({transfer.tag, static_cast<int64_t>(transfer.memory.size())});
  }
  void wait(std::vector<Moved>& results) override {
    std::unique_lock lock(mutex_);
    const int needed = started_.empty()
                           ? seen_ + 1
                           : 2;  // the submission rings once, the destructor a second time
    changed_.wait(lock, [&] { return rings_ >= needed; });
    seen_ = rings_;
    results.insert(results.end(), started_.begin(), started_.end());
    started_.clear();
  }
  void wake() override {
    std::lock_guard lock(mutex_);
    ++rings_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int rings_ = 0;
  int seen_ = 0;
  std::vector<Moved> started_;
};

// As many transfers as the queue is deep, so that the request is still "starting" when all of them complete at once.
TEST(QueueEnd, ARequestThatFillsTheDepthDoesNotKeepTheDestructorWaiting) {
  for (const Bytes transfers : {Bytes{1}, Bytes{DiskQueue::kDepth - 1}, Bytes{DiskQueue::kDepth}}) {
    Completions completions;
    AlignedBuffer buffer(transfers * DiskQueue::kTransferBytes);
    auto queue = start_queue(std::make_unique<LateBatch>());
    queue->submit({Direction::write, -1, 0, {buffer.span()}, "nothing", completions.expect()});
    queue.reset();
    EXPECT_TRUE(completions.each_completed_once());
    EXPECT_TRUE(completions.outcome(0).ok());
  }
}

}  // namespace
}  // namespace bottomless
