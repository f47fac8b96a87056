// What a line of JSONL means, what is learned of it, and what is said about a line that means nothing.
#include "data/sample.h"

#include <gtest/gtest.h>

#include "byte_encoder.h"

namespace bottomless::data {
namespace {

const std::string kWhere = "'chat.jsonl', line 12";

// What is learned as it is, what is only shown as dots.
std::string learned(const std::string& line, const Encoder& encoder = ByteEncoder()) {
  const Result<Sample> sample = parse_sample(line, kWhere);
  if (!sample.ok()) return sample.error().message;
  const Result<Encoded> encoded = encode(sample.value(), encoder, kWhere);
  if (!encoded.ok()) return encoded.error().message;
  std::string text = text_of(encoded.value().tokens);
  for (size_t i = 0; i < text.size(); ++i) {
    if (encoded.value().counts[i] == 0) text[i] = '.';
  }
  return text;
}

TEST(Sample, OfTextIsLearnedWhole) { EXPECT_EQ(learned(R"({"text": "abc", "id": 7})"), "abc|"); }

TEST(Sample, OfPromptAndResponseIsLearnedFromTheResponseOn) {
  EXPECT_EQ(learned(R"({"prompt": "ab", "response": "cd"})"), "..cd|");
  EXPECT_EQ(learned(R"({"prompt": "ab", "completion": "cd"})"), "..cd|");
  ByteEncoder encoder;
  encoder.begin = ByteEncoder::kBegin;
  EXPECT_EQ(learned(R"({"prompt": "ab", "response": "cd"})", encoder), "...cd|");
}

TEST(Sample, OfMessagesIsLearnedWhereTheAssistantSpeaks) {
  const char* messages = R"({"messages": [{"role": "user", "content": "hi"},
      {"role": "assistant", "content": "yo"}, {"role": "user", "content": "x"},
      {"role": "assistant", "content": "y"}]})";
  EXPECT_EQ(learned(messages), ".....yo|....y|");
  EXPECT_EQ(learned(R"({"conversations": [{"from": "human", "value": "hi"},
                        {"from": "gpt", "value": "yo"}]})"),
            ".....yo|");
}

TEST(Sample, WithoutAChatTemplateNamesTheLine) {
  ByteEncoder encoder;
  encoder.has_template = false;
  EXPECT_EQ(learned(R"({"messages": [{"role": "assistant", "content": "yo"}]})", encoder),
            "apply the chat template to 'chat.jsonl', line 12: the tokenizer has no chat template");
}

TEST(Sample, ThatMeansNothingIsAnErrorThatNamesTheLineAndSaysWhatToDo) {
  const std::pair<const char*, const char*> kCases[] = {
      {"{\"text\": \"a\"",
       "it is not JSON by itself: the object does not end on the line; each line must be one JSON "
       "object"},
      {"{\"text\": a}", "not JSON from byte 10 on; each line must be one JSON object"},
      {"{", "it is not JSON by itself: the object does not end on the line"},
      {"[",
       "a JSON array begins there; each line must be one JSON object by itself, as jq -c '.[]'"},
      {" [{\"text\": \"a\"},", "a JSON array begins there"},
      {"hello", "not JSON from byte 1 on"},
      {"[1, 2]", "it is a JSON array; each line must be one JSON object by itself"},
      {"7", "no JSON object; write {\"text\": ...}"},
      {"{}", "none of the names 'text', 'prompt', 'messages' and 'conversations'; write"},
      {R"({"text": 5})", "its 'text' is no string; write"},
      {R"({"prompt": ["a"], "response": "b"})", "its 'prompt' is no string; write"},
      {R"({"prompt": null})", "its 'prompt' is no string"},
      {R"({"messages": "a", "prompt": 1})", "'messages' is no list of messages"},
      {R"({"prompt": "a"})", "a 'prompt' but no 'response' that is a string"},
      {R"({"messages": []})", "'messages' is no list of messages"},
      {R"({"messages": [{"role": "assistant"}]})", "message 1 has no 'role' and 'content'"},
      {R"({"messages": [{"role": "user", "content": "a"}]})", "no message is the assistant's"},
      {R"({"conversations": [{"from": "human", "text": "a"}]})", "has no 'from' and 'value'"},
      {"{\"text\": \"\xff\"}", "byte 11 is not UTF-8; convert the file"},
      {R"({"text": "\ud800"})", "not JSON from byte"},
      {R"({"number": 1e999})", "a number in it is too large"},
  };
  for (const auto& [line, expected] : kCases) {
    const Result<Sample> sample = parse_sample(line, kWhere);
    ASSERT_FALSE(sample.ok()) << line;
    EXPECT_EQ(sample.error().code, Code::invalid_argument);
    EXPECT_NE(sample.error().message.find(expected), std::string::npos) << sample.error().message;
    EXPECT_NE(sample.error().message.find(kWhere), std::string::npos);
  }
}

TEST(Utf8, IsValidUpToTheFirstBadByte) {
  const std::pair<std::string, size_t> kCases[] = {
      {"", 0},
      {"abc", 3},
      {"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 9},
      {"a\x80", 1},             // a byte that only goes on
      {"\xC0\xAF", 0},          // too long a form
      {"\xE0\x9F\xBF", 0},      // too long a form
      {"\xED\xA0\x80", 0},      // a surrogate
      {"\xF4\x90\x80\x80", 0},  // beyond U+10FFFF
      {"ab\xE2\x82", 2},        // cut
      {"\xF0\x9F\x98z", 0},     // the fourth byte is missing
      {"\xED\x9F\xBF\xEE\x80\x80", 6},
  };
  for (const auto& [text, valid] : kCases) EXPECT_EQ(valid_utf8_prefix(text), valid) << text;
}

}  // namespace
}  // namespace bottomless::data
