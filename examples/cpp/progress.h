// Shows how a training run goes, on stderr: a bar that redraws itself on a terminal, one line per
// step elsewhere.
// Thread-safety: use one Progress from one thread at a time.
#pragma once
#include <bottomless/bytes.h>

#include <cstdint>
#include <optional>

namespace example {

// What is known after a step. The disk counts are totals since the start.
struct Sample {
  float loss = 0;
  double seconds = 0;
  bottomless::Bytes resident_bytes = 0;
  std::optional<bottomless::Bytes> limit_bytes = std::nullopt;  // absent when the run has no limit
  bottomless::Bytes read_bytes = 0;
  bottomless::Bytes written_bytes = 0;
};

class Progress {
 public:
  explicit Progress(int64_t steps);
  ~Progress();  // leaves the cursor on a fresh line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void finished_step(const Sample& sample);

 private:
  const int64_t steps_;
  const bool terminal_;
  int64_t done_ = 0;
  double recent_seconds_ =
      0;  // a moving average, so that a slow first step does not spoil the estimate
};

}  // namespace example
