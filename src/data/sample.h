// One line of a JSONL file, and what the model learns of it. Known forms:
//   {"text": ...}                                      all of it
//   {"prompt": ..., "response": ...}                   the response; "completion" is another word for it
//   {"messages": [{"role": ..., "content": ...}, ...]} what the assistant says; also "conversations" of "from" and "value"
// Other names beside these are passed over.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/encoder.h"

namespace bottomless::data {

struct Text {
  std::string text;
};
struct Answer {
  std::string prompt;
  std::string response;
};
struct Chat {
  std::vector<Message> messages;
};
using Sample = std::variant<Text, Answer, Chat>;

// `where` names the line in errors: "'chat.jsonl', line 12".
Result<Sample> parse_sample(std::string_view line, const std::string& where);

// With the marks of beginning and end.
Result<Encoded> encode(const Sample& sample, const Encoder& encoder, const std::string& where);

// The place of the first byte that is not part of UTF-8; the length of the text if there is none.
size_t valid_utf8_prefix(std::string_view text);

}  // namespace bottomless::data
