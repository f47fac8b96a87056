// Byte-pair encoding: a word begins as its characters, and the pair of neighbours that was learned first becomes one
// token, until no learned pair is left. The same as the BPE model of the PyPI package `tokenizers`.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizers/bpe/merges.h"
#include "tokenizers/bpe/word_cache.h"

namespace bottomless::text {

class Bpe {
 public:
  // The "model" of a tokenizer.json. Throws json::exception where a field is missing or of another type.
  static Result<Bpe> parse(const nlohmann::json& model);

  // Appends the tokens of one word.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

  // Where in the word each of the tokens begins that encode() has made of it.
  std::vector<size_t> begins_of(std::string_view word, std::span<const int32_t> ids) const;

  std::optional<int32_t> id_of(std::string_view token) const;
  // nullptr: no such token.
  const std::string* token_of(int32_t id) const;
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  int32_t greatest_id() const { return static_cast<int32_t>(tokens_.size()) - 1; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  Bpe() = default;
  Result<void> read_vocabulary(const nlohmann::json& vocabulary);
  Result<void> read_merges(const nlohmann::json& merges);
  void index_characters();
  void begin_with_characters(std::string_view word, std::vector<int32_t>& symbols) const;
  int32_t id_of_character(std::string_view character) const;  // -1: none

  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> tokens_;       // by id; null where there is none
  std::array<int32_t, 0x180> short_characters_;  // ids of those that byte-level words are made of
  std::array<int32_t, 256> byte_ids_;            // of <0x00> and so on, or -1
  Merges merges_;
  std::optional<int32_t> unknown_;
  bool falls_back_to_bytes_ = false;
  bool fuses_unknown_ = false;
  bool ignores_merges_ = false;
  WordCache cache_;
};

}  // namespace bottomless::text
