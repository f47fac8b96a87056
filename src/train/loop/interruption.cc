#include "train/loop/interruption.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace bottomless::train {
namespace {

constexpr uint64_t kNoCheckpoint = ~uint64_t{0};

// A handler has nothing but globals. Each is read or written by itself, so any order is right.
std::atomic<int> requested_signal{0};
std::atomic<int> acknowledged_on{-1};
std::atomic<uint64_t> last_checkpoint{kNoCheckpoint};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

// Only what a signal handler may call: no allocation, no stdio.
class SignalSafeText {
 public:
  SignalSafeText& operator<<(const char* text) {
    while (*text != 0 && length_ < sizeof text_) text_[length_++] = *text++;
    return *this;
  }
  SignalSafeText& operator<<(uint64_t number) {
    char digits[21] = {};
    size_t at = sizeof digits - 1;
    do {
      digits[--at] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << digits + at;
  }
  void write_to(int file) const {
    // Who reads it may be gone: then there is nobody to tell.
    if (write(file, text_, length_) < 0) return;
  }

 private:
  char text_[200] = {};
  size_t length_ = 0;
};

void acknowledge(int file) {
  SignalSafeText text;
  if (isatty(file) == 1) text << "\n";  // behind the status line
  text << "bottomless: stopping after this step; again to stop now, ";
  const uint64_t step = last_checkpoint;
  if (step == kNoCheckpoint) {
    text << "there is no checkpoint yet";
  } else {
    text << "the last checkpoint is step " << step;
  }
  (text << "\n").write_to(file);
}

void request(int signal) {
  const int before = errno;
  if (requested_signal.exchange(signal) != 0) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
    raise(signal);  // blocked until this returns
  } else if (const int file = acknowledged_on; file >= 0) {
    acknowledge(file);
  }
  errno = before;
}

}  // namespace

Interruption::Interruption(int speaks_to) {
  requested_signal = 0;
  acknowledged_on = speaks_to;
  last_checkpoint = kNoCheckpoint;
  struct sigaction action {};
  action.sa_handler = request;
  action.sa_flags = SA_RESTART;  // what it interrupts goes on
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
}

Interruption::~Interruption() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
}

int Interruption::requested() const { return requested_signal; }

void Interruption::saved(uint64_t step) { last_checkpoint = step; }

}  // namespace bottomless::train
