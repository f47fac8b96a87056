// How tokens become text again: the "decoder" of a tokenizer.json.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bottomless::text {

class Decoder {
 public:
  virtual ~Decoder();
  // Changes the tokens, and how many there are; the text is what they are then, one behind the other.
  virtual Result<void> apply(std::vector<std::string>& tokens) const = 0;
};

// null gives nullptr: spaces stand between the tokens. Throws json::exception where a field is missing or of another type.
Result<std::unique_ptr<Decoder>> parse_decoder(const nlohmann::json& from);

// The value of a token such as <0x0A>; -1 if it is none.
int byte_of_token(std::string_view token);

}  // namespace bottomless::text
