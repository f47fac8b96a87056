#include "plan/repetition.h"

#include <gtest/gtest.h>

#include <vector>

namespace bottomless {
namespace {

// Runs operations numbered from `first`, and says after how many of them a step was found to end.
std::vector<size_t> ends_in(Repetition& repetition, uint64_t first, size_t count) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < count; ++i) {
    if (repetition.next(first + i)) ends.push_back(i);
  }
  return ends;
}

TEST(Repetition, FindsAStepThatComesAgain) {
  Repetition repetition;
  EXPECT_TRUE(ends_in(repetition, 5000, 777).empty()) << "nothing has come twice: setting up";
  size_t found = 0;
  for (int step = 0; step < 10; ++step) {
    const std::vector<size_t> ends = ends_in(repetition, 1, 200);
    EXPECT_LE(ends.size(), 1u);
    if (step >= 2) {
      EXPECT_EQ(ends.size(), 1u) << step;
    }
    if (step >= 3) {
      EXPECT_LE(ends.at(0), Repetition::kRun) << "where the step begins";
    }
    found += ends.size();
  }
  EXPECT_GE(found, 8u);
}

TEST(Repetition, GoesOnThroughEvaluationEveryFewSteps) {
  Repetition repetition;
  size_t found = 0;
  for (int step = 0; step < 30; ++step) {
    found += ends_in(repetition, 1, 200).size();
    if (step % 5 == 4) ends_in(repetition, 9000, 60);
  }
  EXPECT_GE(found, 26u);
}

TEST(Repetition, StartsOverWhenTheProgramDoesSomethingElse) {
  Repetition repetition;
  for (int step = 0; step < 5; ++step) ends_in(repetition, 1, 100);
  ends_in(repetition, 20'000, 2000);
  size_t found = 0;
  for (int step = 0; step < 6; ++step) found += ends_in(repetition, 50'000, 150).size();
  EXPECT_GE(found, 3u);
}

TEST(Repetition, FindsNothingWhereNothingRepeats) {
  Repetition repetition;
  EXPECT_TRUE(ends_in(repetition, 1, 100'000).empty());
}

TEST(Repetition, IsNotTakenInByAShortLoop) {
  Repetition repetition;
  size_t found = 0;
  for (int i = 0; i < 500; ++i) found += ends_in(repetition, 1, 4).size();
  EXPECT_EQ(found, 0u) << "a few operations over and over are no step";
}

}  // namespace
}  // namespace bottomless
