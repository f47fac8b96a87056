// Tells how far a long job is: a bar with the time left on a terminal, a line for each new piece of
// work elsewhere.
// Thread-safety: one thread at a time.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

#include "base/status_line.h"

namespace bottomless::cli {

class Progress {
 public:
  using Style = StatusLine::Style;

  // The style follows the stream: a bar if it is a terminal.
  Progress(std::FILE* stream, size_t steps) : line_(stream), steps_(steps) {}
  Progress(std::FILE* stream, size_t steps, Style style) : line_(stream, style), steps_(steps) {}

  // The next step begins; the one before, if any, is done. Several in a row may be the same work.
  void begin(const std::string& work);

 private:
  StatusLine line_;
  const size_t steps_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  size_t begun_ = 0;
  std::string work_;
};

// "[#####...............] 25 %, 1 min 30 s left: reading"
std::string progress_bar(size_t done, size_t steps, double elapsed_seconds,
                         const std::string& work);

}  // namespace bottomless::cli
