#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace bottomless::cli {
namespace {

std::string duration(double seconds) {
  const long whole = std::lround(seconds);
  return (whole >= 60 ? std::to_string(whole / 60) + " min " : "") + std::to_string(whole % 60) +
         " s";
}

// Known once a step is done: the others are taken to last as long.
std::string time_left(size_t done, size_t steps, double elapsed_seconds) {
  if (done == 0) return "";
  const double each = elapsed_seconds / static_cast<double>(done);
  return std::string(", ") + duration(each * static_cast<double>(steps - done)) + " left";
}

// A bar that is broken into two lines could not be drawn over.
size_t columns(std::FILE* stream) {
  winsize size{};
  return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

}  // namespace

std::string progress_bar(size_t done, size_t steps, double elapsed_seconds,
                         const std::string& work) {
  constexpr size_t kWidth = 20;
  done = std::min(done, steps);
  const size_t filled = steps == 0 ? kWidth : done * kWidth / steps;
  const size_t percent = steps == 0 ? 100 : done * 100 / steps;
  return std::string("[") + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] " +
         std::to_string(percent) + " %" + time_left(done, steps, elapsed_seconds) + ": " + work;
}

Progress::Progress(std::FILE* stream, size_t steps)
    : Progress(stream, steps, isatty(fileno(stream)) == 1 ? Style::bar : Style::lines) {}

Progress::~Progress() {
  if (style_ == Style::bar && begun_ > 0) std::fputs("\r\033[K", stream_);
}

void Progress::begin(const std::string& work) {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  const double seconds = std::chrono::duration<double>(elapsed).count();
  const size_t done = std::min(begun_++, steps_);
  if (style_ == Style::bar) {
    const std::string bar = progress_bar(done, steps_, seconds, work).substr(0, columns(stream_));
    std::fprintf(stream_, "\r%s\033[K", bar.c_str());
  } else if (work != work_) {
    std::fprintf(stream_, "%zu of %zu%s: %s\n", done + 1, steps_,
                 time_left(done, steps_, seconds).c_str(), work.c_str());
  }
  std::fflush(stream_);
  work_ = work;
}

}  // namespace bottomless::cli
