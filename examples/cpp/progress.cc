#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

namespace example {
namespace {

template <class... Args>
std::string print(const char* format, Args... args) {
  char line[64];
  const int length = std::snprintf(line, sizeof line, format, args...);
  return {line, std::min<size_t>(std::max(length, 0), sizeof line - 1)};
}

std::string duration(double seconds) {
  const auto whole = static_cast<long>(std::ceil(seconds));
  if (whole < 3600) return print("%ld:%02ld", whole / 60, whole % 60);
  return print("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string bar(int64_t done, int64_t steps) {
  constexpr size_t kCells = 20;
  std::string cells(kCells * done / steps, '#');
  cells.resize(kCells, '.');
  return "[" + cells + "] ";
}

std::string memory(const Sample& sample) {
  std::string text = "memory " + bottomless::format_bytes(sample.resident_bytes);
  if (!sample.limit_bytes) return text;
  return text + " of " + bottomless::format_bytes(*sample.limit_bytes) + "  read " +
         bottomless::format_bytes(sample.read_bytes) + "  written " +
         bottomless::format_bytes(sample.written_bytes);
}

size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (terminal_ && done_ > 0) std::fputc('\n', stderr);
}

void Progress::finished_step(const Sample& sample) {
  constexpr double kNewest = 0.3;
  recent_seconds_ =
      done_ < 2 ? sample.seconds : (1 - kNewest) * recent_seconds_ + kNewest * sample.seconds;
  ++done_;

  std::string line = terminal_ ? bar(done_, steps_) : "step ";
  line += print("%lld/%lld  loss %.4f  %.2f s/step  ", static_cast<long long>(done_),
                static_cast<long long>(steps_), sample.loss, sample.seconds);
  line += memory(sample) + "  left " + duration(recent_seconds_ * (steps_ - done_));

  if (terminal_) {
    // A line that wraps cannot be overwritten, so it is cut. \x1b[K clears what a longer line left
    // behind.
    line.resize(std::min(line.size(), terminal_columns() - 1));
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
  std::fflush(stderr);
}

}  // namespace example
