#include "base/kind.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

TEST(KindBytes, CountsEachKindByItself) {
  KindBytes bytes;
  bytes.add(Kind::parameter, 10);
  bytes.add(Kind::activation, 5);
  bytes.add(Kind::parameter, 7);
  bytes.remove(Kind::parameter, 4);
  EXPECT_EQ(bytes.of(Kind::parameter), 13u);
  EXPECT_EQ(bytes.of(Kind::activation), 5u);
  EXPECT_EQ(bytes.of(Kind::gradient), 0u);
}

TEST(KindBytes, EveryKindHasAName) {
  EXPECT_EQ(kKindNames[static_cast<size_t>(Kind::parameter)], "parameter");
  EXPECT_EQ(kKindNames[static_cast<size_t>(Kind::gradient)], "gradient");
  EXPECT_EQ(kKindNames[static_cast<size_t>(Kind::state)], "state");
  EXPECT_EQ(kKindNames[static_cast<size_t>(Kind::activation)], "activation");
  EXPECT_EQ(kKindNames[static_cast<size_t>(Kind::other)], "other");
}

}  // namespace
}  // namespace bottomless
