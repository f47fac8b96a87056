// The same tests for every implementation of Transfers.
#include "io/transfers.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "io/scratch_file.h"
#include "support/aligned_buffer.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

constexpr unsigned kDepth = 8;

struct Kind {
  std::string name;
  Result<std::unique_ptr<Transfers>> (*make)();
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

class AnyTransfers : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Transfers>> made = GetParam().make();
    if (!made.ok()) GTEST_SKIP() << made.error().message;
    transfers_ = std::move(made).value();
    Result<ScratchFile> file = ScratchFile::open(directory_.path());
    ASSERT_TRUE(file.ok()) << file.error().message;
    file_ = std::make_unique<ScratchFile>(std::move(file).value());
    ASSERT_TRUE(file_->grow(8_MiB).ok());
  }

  Transfer transfer(Direction direction, uint64_t offset, std::span<std::byte> memory,
                    uint64_t tag) {
    return {
        .direction = direction, .fd = file_->fd(), .offset = offset, .memory = memory, .tag = tag};
  }
  // The results of `count` transfers, by tag.
  std::map<uint64_t, int64_t> results(size_t count) {
    std::map<uint64_t, int64_t> by_tag;
    std::vector<Moved> moved;
    while (moved.size() < count) transfers_->wait(moved);
    for (const Moved& each : moved)
      EXPECT_TRUE(by_tag.emplace(each.tag, each.result).second) << each.tag;
    return by_tag;
  }

  TemporaryDirectory directory_;
  std::unique_ptr<ScratchFile> file_;
  std::unique_ptr<Transfers> transfers_;
};

TEST_P(AnyTransfers, WhatIsWrittenIsRead) {
  std::vector<AlignedBuffer> written;
  for (uint64_t i = 0; i < kDepth; ++i) {
    written.emplace_back(256_KiB).fill(i);
    transfers_->start(transfer(Direction::write, i * 256_KiB, written.back().span(), 100 + i));
  }
  auto moved = results(kDepth);
  for (uint64_t i = 0; i < kDepth; ++i) EXPECT_EQ(moved.at(100 + i), 256_KiB);
  std::vector<AlignedBuffer> read;
  for (uint64_t i = 0; i < kDepth; ++i) {
    read.emplace_back(256_KiB);
    transfers_->start(transfer(Direction::read, i * 256_KiB, read.back().span(), i));
  }
  moved = results(kDepth);
  for (uint64_t i = 0; i < kDepth; ++i) {
    EXPECT_EQ(moved.at(i), 256_KiB);
    EXPECT_EQ(read[i].mismatch(i), read[i].size()) << i;
  }
}

TEST_P(AnyTransfers, AnErrorComesBackAsANegativeErrno) {
  AlignedBuffer buffer(4_KiB);
  Transfer bad = transfer(Direction::read, 0, buffer.span(), 3);
  bad.fd = -1;
  transfers_->start(bad);
  EXPECT_EQ(results(1).at(3), -EBADF);
}

TEST_P(AnyTransfers, TheEndOfTheFileComesBackShort) {
  AlignedBuffer buffer(64_KiB);
  transfers_->start(transfer(Direction::read, 8_MiB - 4_KiB, buffer.span(), 1));
  EXPECT_EQ(results(1).at(1), 4_KiB);
  transfers_->start(transfer(Direction::read, 9_MiB, buffer.span(), 2));
  EXPECT_EQ(results(1).at(2), 0);
}

TEST_P(AnyTransfers, AWakeBeforeTheWaitIsNotLost) {
  transfers_->wake();
  std::vector<Moved> none;
  transfers_->wait(none);
  EXPECT_TRUE(none.empty());
}

TEST_P(AnyTransfers, AWakeFromAnotherThreadEndsTheWaitEachTime) {
  for (int round = 0; round < 20; ++round) {
    std::thread other([&] { transfers_->wake(); });
    std::vector<Moved> none;
    transfers_->wait(none);
    EXPECT_TRUE(none.empty());
    other.join();
  }
}

TEST_P(AnyTransfers, AWakeDoesNotSwallowResults) {
  AlignedBuffer buffer(4_KiB);
  buffer.fill(1);
  for (int round = 0; round < 20; ++round) {
    transfers_->start(transfer(Direction::write, 0, buffer.span(), 7));
    transfers_->wake();
    EXPECT_EQ(results(1).at(7), 4_KiB);
  }
}

TEST_P(AnyTransfers, ManyRoundsAtFullDepthLoseNothing) {
  std::vector<AlignedBuffer> buffers;
  for (unsigned i = 0; i < kDepth; ++i) buffers.emplace_back(4_KiB);
  for (uint64_t round = 0; round < 200; ++round) {
    for (uint64_t i = 0; i < kDepth; ++i) {
      transfers_->start(
          transfer(Direction::write, i * 4_KiB, buffers[i].span(), round * kDepth + i));
    }
    const auto moved = results(kDepth);
    ASSERT_EQ(moved.size(), kDepth);
    for (const auto& [tag, result] : moved) ASSERT_EQ(result, 4_KiB) << tag;
  }
}

INSTANTIATE_TEST_SUITE_P(Both, AnyTransfers,
                         testing::Values(Kind{"Uring", [] { return make_uring_transfers(kDepth); }},
                                         Kind{"Threaded",
                                              [] { return make_threaded_transfers(); }}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
