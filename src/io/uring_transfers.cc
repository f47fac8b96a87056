#include <liburing.h>
#include <sys/eventfd.h>

#include <cerrno>

#include "base/check.h"
#include "base/errno_error.h"
#include "base/unique_fd.h"
#include "io/transfers.h"

namespace bottomless {
namespace {

constexpr uint64_t kWakeTag = ~0ull;

class UringTransfers final : public Transfers {
 public:
  UringTransfers(const io_uring& ring, UniqueFd wake_fd)
      : ring_(ring), wake_fd_(std::move(wake_fd)) {}
  ~UringTransfers() override { io_uring_queue_exit(&ring_); }

  void start(const Transfer& transfer) override {
    if (!enabled_) enable();
    io_uring_sqe* entry = next_entry();
    const auto length = static_cast<unsigned>(transfer.memory.size());
    if (transfer.direction == Direction::read) {
      io_uring_prep_read(entry, transfer.fd, transfer.memory.data(), length, transfer.offset);
    } else {
      io_uring_prep_write(entry, transfer.fd, transfer.memory.data(), length, transfer.offset);
    }
    io_uring_sqe_set_data64(entry, transfer.tag);
  }

  void wait(std::vector<Moved>& results) override {
    if (!enabled_) enable();
    int submitted = 0;
    do {
      submitted = io_uring_submit_and_wait(&ring_, 1);
    } while (submitted == -EINTR || submitted == -EAGAIN || submitted == -EBUSY);
    BOTTOMLESS_CHECK(submitted >= 0, "io_uring refused to submit");
    bool rang = false;
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const uint64_t tag = io_uring_cqe_get_data64(entry);
      if (tag == kWakeTag) {
        rang = true;
      } else {
        results.push_back({tag, entry->res});
      }
      io_uring_cqe_seen(&ring_, entry);
    }
    if (rang) arm_bell();
  }

  void wake() override { eventfd_write(wake_fd_.get(), 1); }

 private:
  // By the thread that owns it, which is the only one that the kernel then lets submit.
  void enable() {
    enabled_ = true;
    // io_uring_enable_rings() is declared by liburing 2.3, but not in it.
    const int failed = io_uring_register(static_cast<unsigned>(ring_.ring_fd),
                                         IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    BOTTOMLESS_CHECK(failed == 0, "io_uring refused to begin");
    arm_bell();
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) {
      io_uring_submit(&ring_);
      entry = io_uring_get_sqe(&ring_);
    }
    BOTTOMLESS_CHECK(entry != nullptr, "more transfers were started than the ring is deep");
    return entry;
  }

  void arm_bell() {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_read(entry, wake_fd_.get(), &rung_, sizeof rung_, 0);
    io_uring_sqe_set_data64(entry, kWakeTag);
  }

  io_uring ring_;
  UniqueFd wake_fd_;
  uint64_t rung_ = 0;
  bool enabled_ = false;
};

// Completions are carried out when the one thread that submits waits for them, instead of
// interrupting it; kernels before 6.1 do not know how.
constexpr unsigned kOneThread = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

}  // namespace

Result<std::unique_ptr<Transfers>> make_uring_transfers(unsigned depth) {
  io_uring ring{};
  int failed = io_uring_queue_init(depth + 1, &ring, IORING_SETUP_R_DISABLED | kOneThread);
  if (failed == -EINVAL) failed = io_uring_queue_init(depth + 1, &ring, IORING_SETUP_R_DISABLED);
  if (failed < 0) return errno_error(-failed, "set up io_uring");
  UniqueFd wake_fd(eventfd(0, EFD_CLOEXEC));
  if (!wake_fd.valid()) {
    io_uring_queue_exit(&ring);
    return errno_error(errno, "make an event descriptor for io_uring");
  }
  return std::unique_ptr<Transfers>(std::make_unique<UringTransfers>(ring, std::move(wake_fd)));
}

}  // namespace bottomless
