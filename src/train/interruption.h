// SIGINT and SIGTERM ask a run to stop after the step it is in, with everything saved. A second one ends it at once.
// Thread-safety: requested() from any thread; one object at a time.
#pragma once
#include <csignal>

namespace bottomless::train {

class Interruption {
 public:
  Interruption();
  ~Interruption();  // signals do what they did before
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool requested() const;

 private:
  struct sigaction interrupt_before_;
  struct sigaction terminate_before_;
};

}  // namespace bottomless::train
