#include <bottomless/result.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>

namespace bottomless {
namespace {

TEST(Result, HoldsAValue) {
  const Result<int> result = 42;
  EXPECT_TRUE(result.ok());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(result.value(), 42);
}

TEST(Result, HoldsAnError) {
  const Result<int> result = Error{Code::no_space, "full"};
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(static_cast<bool>(result));
  EXPECT_EQ(result.error().code, Code::no_space);
  EXPECT_EQ(result.error().message, "full");
}

TEST(Result, ValueCanBeMovedOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 7);
}

TEST(Result, ErrorCanBeMovedIntoAnotherResult) {
  Result<int> inner = Error{Code::io, std::string(100, 'x')};
  const Result<void> outer = std::move(inner).error();
  EXPECT_EQ(outer.error().message, std::string(100, 'x'));
}

TEST(Result, VoidIsOkByDefault) {
  const Result<void> fine;
  EXPECT_TRUE(fine.ok());
  const Result<void> broken = Error{Code::unsupported, "old kernel"};
  EXPECT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, Code::unsupported);
}

TEST(Result, AccessToTheWrongAlternativeThrowsInsteadOfReadingGarbage) {
  const Result<int> value = 1;
  EXPECT_THROW((void)value.error(), std::bad_variant_access);
  const Result<int> error = Error{Code::io, ""};
  EXPECT_THROW((void)error.value(), std::bad_variant_access);
}

static_assert(std::is_move_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
static_assert(!std::is_convertible_v<Result<int>, bool>,
              "a result must not turn into a truth value unnoticed");

}  // namespace
}  // namespace bottomless
