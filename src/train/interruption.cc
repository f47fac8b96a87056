#include "train/interruption.h"

#include <atomic>

namespace bottomless::train {
namespace {

std::atomic<bool> is_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void request(int) { is_requested = true; }

}  // namespace

Interruption::Interruption() {
  is_requested = false;
  struct sigaction action {};
  action.sa_handler = request;
  // Only the first one; and what it interrupts goes on.
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
}

Interruption::~Interruption() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
}

bool Interruption::requested() const { return is_requested; }

}  // namespace bottomless::train
