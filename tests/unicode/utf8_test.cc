#include "unicode/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace bottomless::text {
namespace {

TEST(Utf8, EveryCharacterComesBackAsItWasAppended) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    std::string text;
    append(code, text);
    ASSERT_TRUE(is_utf8(text)) << std::hex << static_cast<uint32_t>(code);
    ASSERT_EQ(first_character(text).code, code);
    ASSERT_EQ(first_character(text).bytes, text.size());
    ASSERT_EQ(last_character("x" + text).code, code);
    ASSERT_EQ(bytes_of_character(text[0]), text.size());
  }
}

TEST(Utf8, IllFormedPartsBecomeOneReplacementEach) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid("a\xFFz"), "a" + replaced + "z");
  EXPECT_EQ(replace_invalid("\xE2\x82z"), replaced + "z");      // cut short: one part
  EXPECT_EQ(replace_invalid("\xC0\xAF"), replaced + replaced);  // too long a form
  EXPECT_EQ(replace_invalid("\xED\xA0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(replace_invalid("\xF0\x9F\x98"), replaced);
  EXPECT_EQ(replace_invalid("\xF4\x90\x80\x80"), replaced + replaced + replaced + replaced);
  EXPECT_EQ(replace_invalid("plain \xC3\xA4"), "plain \xC3\xA4");
}

TEST(Utf8, NothingIsReadBehindTheEnd) {
  const std::string whole = "\xF0\x9F\x98\x80";
  for (size_t bytes = 1; bytes < whole.size(); ++bytes) {
    EXPECT_FALSE(is_utf8(std::string_view(whole).substr(0, bytes)));
  }
}

}  // namespace
}  // namespace bottomless::text
