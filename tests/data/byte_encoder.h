// A tokenizer for tests: a token for each byte, and marks beyond them.
#pragma once
#include <string>

#include "data/encoder.h"

namespace bottomless::data {

class ByteEncoder : public Encoder {
 public:
  static constexpr int32_t kBegin = 256, kEnd = 257, kUser = 258, kAssistant = 259, kOver = 260;

  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }

  Result<Encoded> encode_chat(std::span<const Message> messages) const override {
    if (!has_template) return Error{Code::unsupported, "the tokenizer has no chat template"};
    Encoded encoded;
    for (const Message& message : messages) {
      const bool assistant = message.role == "assistant";
      encoded.tokens.push_back(assistant ? kAssistant : kUser);
      encoded.counts.push_back(0);
      const std::vector<int32_t> tokens = encode(message.content).value();
      encoded.tokens.insert(encoded.tokens.end(), tokens.begin(), tokens.end());
      encoded.tokens.push_back(kOver);
      encoded.counts.resize(encoded.tokens.size(), assistant ? 1 : 0);
    }
    return encoded;
  }

  std::optional<int32_t> beginning() const override { return begin; }
  std::optional<int32_t> end() const override { return over; }
  int64_t vocabulary_size() const override { return vocabulary; }
  uint64_t fingerprint() const override { return print; }

  bool has_template = true;
  std::optional<int32_t> begin, over = kEnd;
  int64_t vocabulary = 261;
  uint64_t print = 1;
};

// The tokens as text, marks as |.
inline std::string text_of(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += token < 256 ? static_cast<char>(token) : '|';
  return text;
}

}  // namespace bottomless::data
