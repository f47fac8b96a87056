#include "cli/progress.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace bottomless::cli {
namespace {

// What a Progress of `style` prints for these works, one step each.
std::string printed(Progress::Style style, size_t steps, const std::vector<std::string>& works) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    Progress progress(stream, steps, style);
    for (const std::string& work : works) progress.begin(work);
  }
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, size};
}

TEST(ProgressBar, ShowsTheShareAndTheTimeLeft) {
  EXPECT_EQ(progress_bar(1, 4, 30, "reading"),
            "[#####...............] 25 %, 1 min 30 s left: reading");
  EXPECT_EQ(progress_bar(3, 4, 30, "reading"), "[###############.....] 75 %, 10 s left: reading");
}

TEST(ProgressBar, DoesNotGuessBeforeAnythingIsDone) {
  EXPECT_EQ(progress_bar(0, 4, 30, "reading"), "[....................] 0 %: reading");
}

TEST(ProgressBar, NeverPassesItsEnd) {
  EXPECT_EQ(progress_bar(9, 4, 30, "x"), "[####################] 100 %, 0 s left: x");
}

TEST(Progress, OfLinesHasOneForEachNewWork) {
  const std::string text = printed(Progress::Style::lines, 3, {"read", "read", "write"});
  EXPECT_TRUE(text.starts_with("1 of 3: read\n3 of 3, ")) << text;
  EXPECT_TRUE(text.ends_with(" s left: write\n")) << text;
}

TEST(Progress, OfABarDrawsOverItselfAndWipesItAway) {
  const std::string text = printed(Progress::Style::drawn_over, 2, {"read", "read"});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_TRUE(
      text.starts_with("\r[....................] 0 %: read\033[K\r[##########..........] 50 %"));
  EXPECT_TRUE(text.ends_with("\r\033[K"));
}

TEST(Progress, OfABarFitsIntoALine) {
  const std::string text = printed(Progress::Style::drawn_over, 2, {std::string(500, 'x')});
  EXPECT_LT(text.size(), 100u);
}

TEST(Progress, OfWhatIsNoTerminalIsLines) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  Progress(file, 1).begin("read");
  EXPECT_EQ(std::ftell(file), static_cast<long>(std::string("1 of 1: read\n").size()));
  std::fclose(file);
}

}  // namespace
}  // namespace bottomless::cli
