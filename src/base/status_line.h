// One line that tells how something is going: drawn over itself on a terminal, one below the other elsewhere.
// Thread-safety: one thread at a time.
// Lifetime: the stream must outlive it.
#pragma once
#include <cstddef>
#include <cstdio>
#include <string>

namespace bottomless {

class StatusLine {
 public:
  enum class Style { drawn_over, lines };

  // The style follows the stream: drawn over if it is a terminal.
  explicit StatusLine(std::FILE* stream);
  StatusLine(std::FILE* stream, Style style) : stream_(stream), style_(style) {}
  ~StatusLine();  // wipes away what is drawn
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  Style style() const { return style_; }
  size_t columns() const;  // that fit on the terminal, which may have been resized

  // Cut to the terminal: a line that is broken into two could not be drawn over.
  void show(const std::string& text);
  // A line that stays, above what is drawn.
  void say(const std::string& text);

 private:
  std::FILE* const stream_;
  const Style style_;
  std::string shown_;
};

// "[#####...............]"
std::string gauge(double share, size_t width);

// "45 s", "1 min 30 s", "2 h 5 min", "3 days 4 h"
std::string duration_text(double seconds);

}  // namespace bottomless
