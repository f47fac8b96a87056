// Every way a disk can go wrong, at every transfer, under an engine over a real file: the operation that needed the
// disk hears of it in one sentence, catches it and goes on, and no block is lost.
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "io/checked_store.h"
#include "io/disk_store.h"
#include "support/faulty_transfers.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit
constexpr uint64_t kStorages = 6;
constexpr std::chrono::minutes kTimeout(1);

struct Setting {
  std::string name;
  Fault fault;
  bool uring = true;
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class DiskFaults : public testing::TestWithParam<Setting> {
 protected:
  // A disk whose n-th transfer goes wrong, and an engine over it.
  void open(uint64_t n) {
    faults_ = std::make_unique<Faults>();
    faults_->fault = GetParam().fault;
    faults_->at = n;
    faults_->times = GetParam().fault == Fault::again ? 3 : 1;
    Result<std::unique_ptr<DiskStore>> disk =
        DiskStore::open({.directories = {directory_.path()},
                         .clock = &clock_,
                         .transfers = [&]() -> Result<std::unique_ptr<Transfers>> {
                           auto real = GetParam().uring ? make_uring_transfers(DiskQueue::kDepth)
                                                        : make_threaded_transfers();
                           if (!real.ok()) return real;
                           return std::unique_ptr<Transfers>(std::make_unique<FaultyTransfers>(
                               std::move(real).value(), *faults_));
                         }});
    ASSERT_TRUE(disk.ok()) << disk.error().message;
    store_ = std::make_unique<CheckedStore>(std::move(disk).value());
    engine_ = make_engine({.timeout = kTimeout, .clock = &clock_}, *store_);
    // Only while something hangs does the timeout pass: a busy machine's disk may be slow, too.
    clock_.on_wait([this] {
      if (hangs() && faults_->fired > 0 && !faults_->released) clock_.advance(kTimeout);
    });
  }
  void close() {
    faults_->release();
    engine_.reset();
    store_.reset();
  }

  static bool hangs() { return GetParam().fault == Fault::hang; }

  // Does it until it succeeds: the first failure must say what went wrong, a second may not happen.
  void insist(const std::function<Result<void>()>& attempt) {
    Result<void> outcome = attempt();
    if (outcome.ok()) return;
    ++failures_;
    const std::string& message = outcome.error().message;
    EXPECT_EQ(outcome.error().code, GetParam().fault == Fault::no_space ? Code::no_space : Code::io)
        << message;
    EXPECT_NE(message.find(GetParam().fault == Fault::corrupt ? "not what was written"
                                                              : directory_.path().string()),
              std::string::npos)
        << message;
    faults_->release();
    outcome = attempt();
    EXPECT_TRUE(outcome.ok()) << "the fault has passed: " << outcome.error().message;
  }

  void write_all() {
    for (uint64_t i = 0; i < kStorages; ++i) {
      insist([&]() -> Result<void> {
        Pins pins(*engine_);
        Result<void*> made = engine_->allocate(kBlock, Kind::other, &pins, "a test");
        if (!made.ok()) return std::move(made).error();
        storages_.push_back(static_cast<std::byte*>(made.value()));
        write_pattern(storages_.back(), kBlock, i);
        return {};
      });
    }
  }
  void read_all() {
    for (uint64_t i = 0; i < storages_.size(); ++i) {
      insist([&]() -> Result<void> {
        Pins pins(*engine_);
        const Need need{.address = storages_[i], .bytes = kBlock};
        Result<void> pinned = engine_->pin(pins, {&need, 1}, "a test");
        EXPECT_TRUE(!pinned.ok() || has_pattern(storages_[i], kBlock, i)) << i;
        return pinned;
      });
    }
  }

  TemporaryDirectory directory_;
  VirtualClock clock_;
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::byte*> storages_;
  int failures_ = 0;
};

TEST_P(DiskFaults, AtEveryTransferAreHeardOfAndLoseNothing) {
  if (GetParam().uring && !make_uring_transfers(1).ok()) GTEST_SKIP() << "no io_uring here";
  int heard = 0;
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("fault at transfer " + std::to_string(n));
    ASSERT_LT(n, 100u);
    failures_ = 0;
    storages_.clear();
    open(n);
    write_all();
    read_all();
    read_all();
    EXPECT_LE(failures_, 1) << "one fault is heard of once";
    EXPECT_GT(engine_->stats().evictions, 0u);
    heard += failures_;
    const bool fired = faults_->fired > 0;
    close();
    if (HasFailure() || !fired) break;
  }
  const bool resumed = GetParam().fault == Fault::again ||
                       GetParam().fault == Fault::short_transfer ||
                       GetParam().fault == Fault::ragged_transfer;
  if (resumed) {
    EXPECT_EQ(heard, 0) << "what can be resumed is nobody's business";
  } else {
    EXPECT_GT(heard, 3) << "the test tests nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, DiskFaults,
    testing::Values(Setting{"Io", Fault::io_error}, Setting{"NoSpace", Fault::no_space},
                    Setting{"Again", Fault::again}, Setting{"Short", Fault::short_transfer},
                    Setting{"Ragged", Fault::ragged_transfer},
                    Setting{"Nothing", Fault::nothing_moved}, Setting{"Corrupt", Fault::corrupt},
                    Setting{"Hang", Fault::hang}, Setting{"ThreadsIo", Fault::io_error, false},
                    Setting{"ThreadsCorrupt", Fault::corrupt, false},
                    Setting{"ThreadsHang", Fault::hang, false}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bottomless
