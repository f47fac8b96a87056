// Transfers that go wrong at a chosen point, around real ones. The Faults object belongs to the test: it says what goes
// wrong, and afterwards whether it did.
// Thread-safety: see Transfers; the counters of Faults from any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "io/transfers.h"

namespace bottomless {

enum class Fault {
  none,
  io_error,        // EIO
  no_space,        // ENOSPC
  again,           // EAGAIN
  interrupted,     // EINTR
  short_transfer,  // half of it is moved, a multiple of 4 KiB where there is more than that
  ragged_transfer,  // a number of bytes that is no multiple of 4 KiB is reported, and what lies below one was moved
  nothing_moved,  // 0 bytes
  corrupt,        // of a read: all is moved, and one bit of it is flipped
  hang,           // no answer before Faults::release()
};

struct Faults {
  Fault fault = Fault::none;
  uint64_t at = 0;     // the transfer, counted from 0 in the order of start(), retries included
  uint64_t times = 1;  // this many in a row

  std::atomic<uint64_t> started{0};
  std::atomic<uint64_t> fired{0};

  void release();  // what hangs, and nothing hangs any more
  std::atomic<bool> released{false};
  std::atomic<Transfers*> hanging{nullptr};  // set while there is something to release
};

class FaultyTransfers final : public Transfers {
 public:
  FaultyTransfers(std::unique_ptr<Transfers> real, Faults& faults)
      : real_(std::move(real)), faults_(faults) {}

  void start(const Transfer& transfer) override;
  void wait(std::vector<Moved>& results) override;
  void wake() override { real_->wake(); }

 private:
  void start_partly(const Transfer& transfer, uint64_t really, uint64_t reported);
  void start_released();

  const std::unique_ptr<Transfers> real_;
  Faults& faults_;
  std::vector<Moved> injected_;
  std::unordered_map<uint64_t, int64_t>
      reported_;  // by tag, where it differs from what was really moved
  std::unordered_map<uint64_t, Transfer> corrupted_;  // by tag
  std::vector<Transfer> hung_;
};

}  // namespace bottomless
