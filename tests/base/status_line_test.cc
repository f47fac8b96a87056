#include "base/status_line.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

namespace bottomless {
namespace {

std::string printed(StatusLine::Style style, const std::function<void(StatusLine&)>& use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    StatusLine line(stream, style);
    use(line);
  }
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, size};
}

TEST(StatusLine, IsDrawnOverAndWipedAway) {
  EXPECT_EQ(printed(StatusLine::Style::drawn_over,
                    [](StatusLine& line) {
                      line.show("one");
                      line.say("note");
                      line.show("two");
                    }),
            "\rone\033[K\r\033[Knote\none\rtwo\033[K\r\033[K");
}

TEST(StatusLine, ElsewhereIsLines) {
  EXPECT_EQ(printed(StatusLine::Style::lines,
                    [](StatusLine& line) {
                      line.show("one");
                      line.say("note");
                      line.show(std::string(200, 'x'));
                    }),
            "one\nnote\n" + std::string(200, 'x') + "\n");
}

TEST(Gauge, IsFilledInProportion) {
  EXPECT_EQ(gauge(0, 4), "[....]");
  EXPECT_EQ(gauge(0.5, 4), "[##..]");
  EXPECT_EQ(gauge(1.0 / 3, 3), "[#..]");
  EXPECT_EQ(gauge(7, 4), "[####]");
  EXPECT_EQ(gauge(-1, 4), "[....]");
}

TEST(Duration, HasTheTwoUnitsThatMatter) {
  EXPECT_EQ(duration_text(0.4), "0 s");
  EXPECT_EQ(duration_text(59.4), "59 s");
  EXPECT_EQ(duration_text(90), "1 min 30 s");
  EXPECT_EQ(duration_text(3600), "1 h 0 min");
  EXPECT_EQ(duration_text(47 * 3600 + 120), "47 h 2 min");
  EXPECT_EQ(duration_text(76 * 3600), "3 days 4 h");
}

}  // namespace
}  // namespace bottomless
