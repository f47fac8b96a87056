// Shows how a training run is going: a bar with gauges on a terminal, a line every few seconds elsewhere.
// Thread-safety: one thread at a time.
// Lifetime: the stream must outlive it.
#pragma once
#include <cstdio>

#include "base/status_line.h"
#include "report/training_status.h"

namespace bottomless::journal {

class TrainingProgress {
 public:
  static constexpr double kSecondsBetweenLines = 10;

  explicit TrainingProgress(std::FILE* stream) : line_(stream) {}
  TrainingProgress(std::FILE* stream, StatusLine::Style style) : line_(stream, style) {}

  // A step is done. Of lines, the first, the last and those with an evaluation are always printed.
  void update(const TrainingStatus& status);
  // Something to remember, such as where a checkpoint is.
  void say(const std::string& text) { line_.say(text); }

 private:
  StatusLine line_;
  double next_line_ = 0;  // in elapsed seconds
};

}  // namespace bottomless::journal
