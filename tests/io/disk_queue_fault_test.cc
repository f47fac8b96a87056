// Every way a transfer can go wrong, at every transfer: what can be resumed is resumed, what cannot is reported once, by
// the request that it hit and no other.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "io/disk_queue.h"
#include "io/scratch_file.h"
#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/faulty_transfers.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

struct Setting {
  std::string name;
  bool uring;
  Fault fault;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

bool can_be_resumed(Fault fault) {
  return fault == Fault::again || fault == Fault::interrupted || fault == Fault::short_transfer ||
         fault == Fault::ragged_transfer;
}

class QueueFaults : public testing::TestWithParam<Setting> {
 protected:
  static constexpr uint64_t kRequests = 3;
  static constexpr Bytes kPlace = 16_MiB;

  void SetUp() override {
    Result<ScratchFile> file = ScratchFile::open(directory_.path());
    ASSERT_TRUE(file.ok()) << file.error().message;
    file_ = std::make_unique<ScratchFile>(std::move(file).value());
    ASSERT_TRUE(file_->grow(kRequests * kPlace).ok());
  }

  std::unique_ptr<DiskQueue> queue(Faults& faults) {
    Result<std::unique_ptr<Transfers>> real =
        GetParam().uring ? make_uring_transfers(DiskQueue::kDepth) : make_threaded_transfers();
    if (!real.ok()) return nullptr;
    return DiskQueue::start("bl-test",
                            std::make_unique<FaultyTransfers>(std::move(real).value(), faults))
        .value();
  }

  // One transfer, one cut into three, and one of several small pieces.
  std::vector<std::vector<std::span<std::byte>>> cut(std::vector<AlignedBuffer>& buffers) {
    return {{buffers[0].span()},
            {buffers[1].span()},
            {buffers[2].span().first(4_KiB), buffers[2].span().subspan(4_KiB, 8_KiB),
             buffers[2].span().subspan(12_KiB)}};
  }
  std::vector<AlignedBuffer> buffers() {
    std::vector<AlignedBuffer> made;
    made.emplace_back(64_KiB);
    made.emplace_back(2 * DiskQueue::kTransferBytes + 36_KiB);
    made.emplace_back(32_KiB);
    return made;
  }

  // Runs the three requests and returns how many failed; a failure must say what, where and why.
  size_t run(DiskQueue& queue, Direction direction, std::vector<AlignedBuffer>& memory) {
    Completions completions;
    auto pieces = cut(memory);
    for (uint64_t i = 0; i < kRequests; ++i) {
      queue.submit({direction, file_->fd(), i * kPlace, std::move(pieces[i]), "the test file",
                    completions.expect()});
    }
    completions.wait_for_all();
    EXPECT_TRUE(completions.each_completed_once());
    size_t failed = 0;
    for (uint64_t i = 0; i < kRequests; ++i) {
      const Result<void> outcome = completions.outcome(i);
      failed_[i] = !outcome.ok();
      if (outcome.ok()) continue;
      ++failed;
      EXPECT_EQ(outcome.error().code,
                GetParam().fault == Fault::no_space ? Code::no_space : Code::io);
      const std::string& message = outcome.error().message;
      EXPECT_NE(message.find(direction == Direction::read ? "read " : "write "), std::string::npos)
          << message;
      EXPECT_NE(message.find("the test file"), std::string::npos) << message;
      const size_t at = message.find("offset ");
      if (at == std::string::npos) {
        ADD_FAILURE() << message;
        continue;
      }
      const uint64_t offset = std::stoull(message.substr(at + 7));
      EXPECT_GE(offset, i * kPlace) << message;
      EXPECT_LT(offset, i * kPlace + memory[i].size()) << message;
    }
    return failed;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ScratchFile> file_;
  std::vector<bool> failed_ = std::vector<bool>(kRequests, false);
};

TEST_P(QueueFaults, AtEveryTransferUntilNoneFires) {
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("fault at transfer " + std::to_string(n));
    ASSERT_LT(n, 100u);
    Faults faults{
        .fault = GetParam().fault, .at = n, .times = GetParam().fault == Fault::again ? 3u : 1u};
    auto queue = this->queue(faults);
    if (queue == nullptr) GTEST_SKIP() << "no io_uring here";

    std::vector<AlignedBuffer> written = buffers();
    for (uint64_t i = 0; i < kRequests; ++i) written[i].fill(1000 * n + i);
    const size_t broken_writes = run(*queue, Direction::write, written);
    const bool fired_in_writes = faults.fired > 0;
    EXPECT_EQ(broken_writes, fired_in_writes && !can_be_resumed(GetParam().fault) ? 1u : 0u);
    for (uint64_t i = 0; i < kRequests; ++i) {
      EXPECT_EQ(written[i].mismatch(1000 * n + i), written[i].size())
          << "a write changed the memory";
    }
    if (broken_writes > 0) {  // a second attempt finds the disk in order again
      EXPECT_EQ(run(*queue, Direction::write, written), 0u);
    }

    std::vector<AlignedBuffer> read = buffers();
    const size_t broken_reads = run(*queue, Direction::read, read);
    EXPECT_EQ(broken_reads,
              !fired_in_writes && faults.fired > 0 && !can_be_resumed(GetParam().fault) ? 1u : 0u);
    for (uint64_t i = 0; i < kRequests; ++i) {
      if (!failed_[i]) {
        EXPECT_EQ(read[i].mismatch(1000 * n + i), read[i].size()) << "request " << i;
      }
    }
    if (faults.fired == 0) break;
  }
}

TEST_P(QueueFaults, WithoutEndIsAnErrorNotAHang) {
  Faults faults{.fault = GetParam().fault, .at = 0, .times = ~0ull};
  auto queue = this->queue(faults);
  if (queue == nullptr) GTEST_SKIP() << "no io_uring here";
  std::vector<AlignedBuffer> memory = buffers();
  EXPECT_EQ(run(*queue, Direction::read, memory), kRequests);
  EXPECT_LE(faults.started, 2000u) << "retries are bounded";
}

INSTANTIATE_TEST_SUITE_P(Each, QueueFaults,
                         testing::Values(Setting{"UringIo", true, Fault::io_error},
                                         Setting{"UringNoSpace", true, Fault::no_space},
                                         Setting{"UringAgain", true, Fault::again},
                                         Setting{"UringInterrupted", true, Fault::interrupted},
                                         Setting{"UringShort", true, Fault::short_transfer},
                                         Setting{"UringRagged", true, Fault::ragged_transfer},
                                         Setting{"UringNothing", true, Fault::nothing_moved},
                                         Setting{"ThreadedIo", false, Fault::io_error},
                                         Setting{"ThreadedAgain", false, Fault::again},
                                         Setting{"ThreadedShort", false, Fault::short_transfer},
                                         Setting{"ThreadedRagged", false, Fault::ragged_transfer},
                                         Setting{"ThreadedNothing", false, Fault::nothing_moved}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
