// What training data asks of a tokenizer, so that this part needs to know none: tokens of a text, and of a conversation
// with the places of the answers in it.
// Thread-safety: several threads call the const members of one Encoder at the same time.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::data {

struct Message {
  std::string role;
  std::string content;

  bool operator==(const Message&) const = default;
};

// `counts[i]` is 1 where the model is to learn `tokens[i]`, and 0 where it is only shown.
struct Encoded {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counts;

  bool operator==(const Encoded&) const = default;
};

class Encoder {
 public:
  virtual ~Encoder() = default;

  // The text alone, without marks of beginning and end. Every token is in [0, vocabulary_size()).
  virtual Result<std::vector<int32_t>> encode(std::string_view text) const = 0;
  // As the model's chat template writes it, marks included; what counts is what the assistant says and the mark that
  // ends it. Code::unsupported where there is no template.
  virtual Result<Encoded> encode_chat(std::span<const Message> messages) const = 0;

  virtual std::optional<int32_t> beginning() const = 0;  // put in front of each text, if any
  virtual std::optional<int32_t> end() const = 0;        // put behind it, if any
  virtual int64_t vocabulary_size() const = 0;
  // Changes with everything that could change a token.
  virtual uint64_t fingerprint() const = 0;
};

}  // namespace bottomless::data
