#include "cli/progress.h"

#include <algorithm>

namespace bottomless::cli {
namespace {

// Known once a step is done: the others are taken to last as long.
std::string time_left(size_t done, size_t steps, double elapsed_seconds) {
  if (done == 0) return "";
  const double each = elapsed_seconds / static_cast<double>(done);
  return ", " + duration_text(each * static_cast<double>(steps - done)) + " left";
}

}  // namespace

std::string progress_bar(size_t done, size_t steps, double elapsed_seconds,
                         const std::string& work) {
  constexpr size_t kWidth = 20;
  done = std::min(done, steps);
  const double share = steps == 0 ? 1 : static_cast<double>(done) / static_cast<double>(steps);
  const size_t percent = steps == 0 ? 100 : done * 100 / steps;
  return gauge(share, kWidth) + " " + std::to_string(percent) + " %" +
         time_left(done, steps, elapsed_seconds) + ": " + work;
}

void Progress::begin(const std::string& work) {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const size_t done = std::min(begun_++, steps_);
  if (line_.style() == Style::drawn_over) {
    line_.show(progress_bar(done, steps_, seconds, work));
  } else if (work != work_) {
    line_.show(std::to_string(done + 1) + " of " + std::to_string(steps_) +
               time_left(done, steps_, seconds) + ": " + work);
  }
  work_ = work;
}

}  // namespace bottomless::cli
