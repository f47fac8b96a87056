#include "base/check.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

TEST(Check, PassesSilentlyAndEvaluatesOnce) {
  int evaluated = 0;
  BOTTOMLESS_CHECK(++evaluated == 1, "counted twice");
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckDeathTest, StopsTheProcessAndSaysWhyAndWhere) {
  EXPECT_DEATH(BOTTOMLESS_CHECK(1 + 1 == 3, "sums are broken"),
               "bug: sums are broken \\(1 \\+ 1 == 3, .*check_test.cc:");
}

}  // namespace
}  // namespace bottomless
