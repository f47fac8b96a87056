#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>

#include "base/errno_error.h"
#include "io/transfers.h"
#include "io/unique_fd.h"

namespace bottomless {
namespace {

// For kernels and containers that forbid io_uring: each wait() carries out one transfer on the
// calling thread.
class BlockingTransfers final : public Transfers {
 public:
  explicit BlockingTransfers(UniqueFd bell) : bell_(std::move(bell)) {}

  void start(const Transfer& transfer) override { started_.push_back(transfer); }

  void wait(std::vector<Moved>& results) override {
    if (started_.empty()) {
      eventfd_t rings = 0;
      eventfd_read(bell_.get(), &rings);
      return;
    }
    const Transfer transfer = started_.front();
    started_.pop_front();
    const auto offset = static_cast<off_t>(transfer.offset);
    const ssize_t moved =
        transfer.direction == Direction::read
            ? ::pread(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset)
            : ::pwrite(transfer.fd, transfer.memory.data(), transfer.memory.size(), offset);
    results.push_back({transfer.tag, moved >= 0 ? moved : -static_cast<int64_t>(errno)});
  }

  void wake() override { eventfd_write(bell_.get(), 1); }

 private:
  UniqueFd bell_;
  std::deque<Transfer> started_;
};

}  // namespace

Result<std::unique_ptr<Transfers>> make_blocking_transfers() {
  UniqueFd bell(eventfd(0, EFD_CLOEXEC));
  if (!bell.valid()) return errno_error(errno, "make an event descriptor");
  return std::unique_ptr<Transfers>(std::make_unique<BlockingTransfers>(std::move(bell)));
}

}  // namespace bottomless
