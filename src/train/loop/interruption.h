// SIGINT and SIGTERM ask a run to stop after the step it is in, with everything saved. The first one is acknowledged at once, the
// second one, of either kind, ends the process.
// Thread-safety: requested() and saved() from any thread; one object at a time.
#pragma once
#include <csignal>
#include <cstdint>

namespace bottomless::train {

class Interruption {
 public:
  // `speaks_to`: the file descriptor for the acknowledgement; -1: another rank says it.
  explicit Interruption(int speaks_to);
  ~Interruption();  // signals do what they did before
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  // The signal that came; 0: none did.
  int requested() const;

  // For the acknowledgement: there is a checkpoint of this step.
  void saved(uint64_t step);

 private:
  struct sigaction interrupt_before_;
  struct sigaction terminate_before_;
};

}  // namespace bottomless::train
