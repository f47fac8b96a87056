#include "unicode/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tokenizers/bpe/byte_level.h"
#include "unicode/stand_ins.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

std::vector<std::string> words(const Regex& regex, std::string_view text) {
  std::vector<Span> spans;
  const Result<void> found_all = regex.find_all(text, spans);
  EXPECT_TRUE(found_all.ok()) << found_all.error().message;
  std::vector<std::string> found;
  for (const Span& span : spans) found.emplace_back(text.substr(span.begin, span.end - span.begin));
  return found;
}

TEST(Regex, CutsWordsAsGpt2Does) {
  const auto regex = Regex::compile(kGpt2Pattern);
  ASSERT_TRUE(regex.ok());
  EXPECT_EQ(words(regex.value(), "I'll go  to 42."),
            (std::vector<std::string>{"I", "'ll", " go", " ", " to", " 42", "."}));
}

TEST(Regex, MatchesTextAsItIs) {
  EXPECT_EQ(words(Regex::literal("a.b"), "a.b axb a.b"), (std::vector<std::string>{"a.b", "a.b"}));
  EXPECT_TRUE(words(Regex::literal(""), "abc").empty());
}

TEST(Regex, TextThatWouldExhaustTheStackOfCompiledCodeIsMatched) {
  const auto regex = Regex::compile("(?:(a|b)(c|d))+");
  ASSERT_TRUE(regex.ok());
  std::string text;
  for (int i = 0; i < 200000; ++i) text += "ad";
  EXPECT_EQ(words(regex.value(), text), std::vector<std::string>{text});
}

// Each of these tries every way to cut the text before it gives up.
TEST(Regex, AnExpressionThatWouldNeverEndIsAnErrorThatNamesIt) {
  std::string text(200, 'a');
  for (const char* pattern :
       {"(?:a|a)*[bc]", "(a+)+[bc]", "(?:(a*)*)*[^a]{9}", "(?:a*a*a*)*[^a]{9}"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_TRUE(regex.ok()) << pattern;
    std::vector<Span> spans;
    const Result<void> found = regex.value().find_all(text + "\n", spans);
    ASSERT_FALSE(found.ok()) << pattern;
    EXPECT_EQ(found.error().code, Code::unsupported);
    EXPECT_NE(found.error().message.find(pattern), std::string::npos) << found.error().message;
  }
}

// However long it is: what an expression may take grows with the text.
TEST(Regex, LongTextsAreMatchedByTheExpressionsOfTokenizers) {
  constexpr size_t kLong = size_t{1} << 18;
  const char* const kLlama3 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  for (const std::string_view pattern : {kGpt2Pattern, std::string_view(kLlama3)}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_TRUE(regex.ok());
    for (const char* part : {"a", " ", "\n", "7", "!", "\xC3\xA9", " \n", "a ", "!\n"}) {
      std::string text;
      while (text.size() < kLong) text += part;
      size_t bytes = 0;
      for (const std::string& word : words(regex.value(), text)) bytes += word.size();
      EXPECT_EQ(bytes, text.size()) << part;
    }
  }
}

TEST(Regex, WhatTheEnginesReadDifferentlyIsRefused) {
  for (const char* pattern : {"\\w+", "a\\b", "\\h", "[a&&b]", "[[:alpha:]]", "(?m:a)", "[a[b]]"}) {
    const auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.error().code, Code::unsupported);
    EXPECT_NE(regex.error().message.find(pattern), std::string::npos);
  }
  const auto broken = Regex::compile("(a");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code, Code::corrupt);
}

TEST(StandIns, HaveTheLengthOfWhatTheyStandFor) {
  size_t replaced = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const char32_t matched = stand_in(code);
    if (matched == code) continue;
    ++replaced;
    std::string before;
    std::string after;
    append(code, before);
    append(matched, after);
    ASSERT_EQ(before.size(), after.size());
    std::string storage;
    ASSERT_EQ(with_stand_ins("a" + before + "b", storage), "a" + after + "b");
  }
  EXPECT_GT(replaced, 10000u);
}

}  // namespace
}  // namespace bottomless::text
