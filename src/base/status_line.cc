#include "base/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace bottomless {
namespace {

constexpr const char* kWipe = "\r\033[K";

}  // namespace

StatusLine::StatusLine(std::FILE* stream)
    : StatusLine(stream, isatty(fileno(stream)) == 1 ? Style::drawn_over : Style::lines) {}

StatusLine::~StatusLine() {
  if (shown_.empty()) return;
  std::fputs(kWipe, stream_);
  std::fflush(stream_);
}

size_t StatusLine::columns() const {
  winsize size{};
  return ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
}

void StatusLine::show(const std::string& text) {
  if (style_ == Style::lines) {
    std::fprintf(stream_, "%s\n", text.c_str());
  } else {
    shown_ = text.substr(0, columns());
    std::fprintf(stream_, "\r%s\033[K", shown_.c_str());
  }
  std::fflush(stream_);
}

void StatusLine::say(const std::string& text) {
  if (!shown_.empty()) std::fputs(kWipe, stream_);
  std::fprintf(stream_, "%s\n%s", text.c_str(), shown_.c_str());
  std::fflush(stream_);
}

std::string gauge(double share, size_t width) {
  const double filled = share > 0 ? std::min(share, 1.0) * static_cast<double>(width) : 0;
  const auto whole = static_cast<size_t>(filled + 1e-9);  // 3 * (1.0 / 3) is a little less than 1
  return "[" + std::string(whole, '#') + std::string(width - whole, '.') + "]";
}

std::string duration_text(double seconds) {
  constexpr long kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  const long whole = std::lround(seconds);
  const auto pair = [&](long large, const char* name, long small, const char* small_name) {
    return std::to_string(whole / large) + name + std::to_string(whole % large / small) +
           small_name;
  };
  if (whole < kMinute) return std::to_string(whole) + " s";
  if (whole < kHour) return pair(kMinute, " min ", 1, " s");
  if (whole < 2 * kDay) return pair(kHour, " h ", kMinute, " min");
  return pair(kDay, " days ", kHour, " h");
}

}  // namespace bottomless
