// How sentencepiece normalises a text: a compiled map from character sequences to others, spaces joined and escaped as
// U+2581, and one put in front.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizers/byte_trie.h"
#include "tokenizers/sentencepiece/model_file.h"

namespace bottomless::text {

inline constexpr std::string_view kEscapedSpace = "\xE2\x96\x81";

class SentencepieceNormalizer {
 public:
  // Errors are Code::corrupt.
  static Result<SentencepieceNormalizer> make(const SentencepieceFile& file);

  enum class Place { front, behind };  // of another part of the text; that gets no space in front
  // What is in `kept` stays as it is. `origins`, if any, gets for each byte of the outcome the one from which it came.
  std::string apply(std::string_view text, const ByteTrie& kept, Place place = Place::front,
                    std::vector<size_t>* origins = nullptr) const;

 private:
  SentencepieceNormalizer() = default;
  // What the beginning of `text` becomes, and how many bytes of it that takes.
  std::pair<std::string_view, size_t> normalize_prefix(std::string_view text,
                                                       const ByteTrie& kept) const;
  // Length and value of the longest key of the map that `text` begins with; 0: none.
  std::pair<size_t, uint32_t> longest_mapped(std::string_view text) const;

  std::vector<uint32_t> units_;  // a double-array trie, as Darts-clone lays it out
  std::string replacements_;     // each ended by a zero
  bool adds_space_in_front_ = true;
  bool removes_extra_spaces_ = true;
  std::string_view space_ = kEscapedSpace;
};

}  // namespace bottomless::text
