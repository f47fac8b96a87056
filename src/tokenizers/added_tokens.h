// Tokens that are found in a text before it is cut into words: special ones such as <|endoftext|>, and what users have added.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizers/byte_trie.h"
#include "tokenizers/normalizer.h"
#include "unicode/span.h"

namespace bottomless::text {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // not inside a longer word
  bool takes_space_before = false;
  bool takes_space_behind = false;
  bool normalized = false;  // looked for in the normalised text, in its normalised form
};

// An entry of "added_tokens" of a tokenizer.json, or of "added_tokens_decoder" of a tokenizer_config.json, where the id is
// the key. Throws json::exception where a field is missing or of another type.
AddedToken parse_added_token(const nlohmann::json& from, int32_t id);

class AddedTokens {
 public:
  // `normalizer` may be null.
  static Result<AddedTokens> make(std::vector<AddedToken> tokens, const Normalizer* normalizer);

  enum class Form { raw, normalized };
  struct Part {
    std::string_view text;
    std::optional<int32_t> id;  // of the token that the part is; none: ordinary text
  };
  // The text in parts, none of them empty, with the tokens that are to be looked for in this form of it.
  std::vector<Part> split(std::string_view text, Form form) const;

  std::optional<int32_t> id_of(std::string_view content) const;
  // As a decoder gets it; nullptr: no such token.
  const std::string* token_of(int32_t id) const;
  int32_t greatest_id() const { return greatest_id_; }  // -1: there is none

 private:
  AddedTokens() = default;
  Result<void> add(std::vector<AddedToken> tokens, const Normalizer* normalizer);
  struct Finder {
    ByteTrie trie;
    std::array<bool, 256> begins{};  // whether a token begins with the byte
  };

  std::vector<AddedToken> tokens_;
  std::vector<std::string> decoded_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, size_t> places_;  // id -> index in tokens_
  Finder raw_;
  Finder normalized_;
  int32_t greatest_id_ = -1;
};

}  // namespace bottomless::text
