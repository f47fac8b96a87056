#include "journal/training_progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace bottomless::journal {
namespace {

std::string printed(StatusLine::Style style, const std::vector<TrainingStatus>& updates) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  {
    TrainingProgress progress(stream, style);
    for (const TrainingStatus& status : updates) progress.update(status);
  }
  std::fclose(stream);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, &std::free);
  return {text, size};
}

TrainingStatus after(uint64_t step, double seconds) {
  TrainingStatus status{.steps = 100, .steps_here = step, .elapsed_seconds = seconds};
  status.last.step = step;
  return status;
}

TEST(TrainingProgress, PrintsALineEveryFewSeconds) {
  std::vector<TrainingStatus> updates;
  for (uint64_t step = 1; step <= 100; ++step) {
    updates.push_back(after(step, static_cast<double>(step)));
  }
  updates[49].last.evaluation_loss = 1;
  const std::string text = printed(StatusLine::Style::lines, updates);
  std::vector<int> steps;
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    steps.push_back(std::stoi(text.substr(at + 5)));
  }
  EXPECT_EQ(steps, (std::vector<int>{1, 11, 21, 31, 41, 50, 60, 70, 80, 90, 100}));
}

TEST(TrainingProgress, DrawsABarAndKeepsEvaluations) {
  TrainingStatus evaluated = after(2, 2);
  evaluated.last.evaluation_loss = 1.5;
  const std::string text = printed(StatusLine::Style::drawn_over, {after(1, 1), evaluated});
  EXPECT_TRUE(text.starts_with("\r[....................] 1 %, 1 min 39 s left")) << text;
  EXPECT_NE(text.find("evaluation loss 1.5000"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

}  // namespace
}  // namespace bottomless::journal
