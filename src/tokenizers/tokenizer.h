// Text to token ids and back, as the directory of a model says: tokenizer.json (byte-pair encoding, as the PyPI package
// `tokenizers` reads it) or tokenizer.model (as `sentencepiece` reads it). docs/tokenizers.md says what is supported.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/span.h"

namespace bottomless::text {

struct PlacedToken {
  int32_t id;
  size_t begin;
};

class Tokenizer {
 public:
  virtual ~Tokenizer();

  // Without tokens at begin and end; added and special tokens that stand in the text are recognised. Text that is not
  // UTF-8 is read with U+FFFD in the places that are ill-formed. This and the two below fail only where an expression of the
  // tokenizer takes more steps for a text than is sensible (regex.h).
  virtual Result<std::vector<int32_t>> encode(std::string_view text) const = 0;
  // The same with the byte of the text, in the order of tokens, where each begins. A blank that is put in front of a word
  // begins with the word.
  virtual Result<std::vector<PlacedToken>> encode_placed(std::string_view text) const = 0;
  // With special tokens as they are written. An id that is none gives nothing.
  virtual Result<std::string> decode(std::span<const int32_t> ids) const = 0;
  // One more than the greatest id, added tokens included: as many rows as an embedding needs.
  virtual int64_t vocabulary_size() const = 0;
  // By its exact text.
  virtual std::optional<int32_t> id_of(std::string_view token) const = 0;

  // What the files beside the vocabulary say.
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  std::string bos_token;  // as written; empty: none
  std::string eos_token;
  bool adds_bos = false;  // whether the model expects `bos` in front of a text, and `eos` behind it
  bool adds_eos = false;
  std::string chat_template;  // empty: none
};

// Which tokens of a text of so many bytes have a part in one of the spans, which follow each other: 1, and otherwise 0. A
// blank may stand in the token of the word behind it, so a token can be in two parts of a text.
std::vector<uint8_t> tokens_within(std::span<const Span> spans, std::span<const PlacedToken> tokens,
                                   size_t text_bytes);

// Errors name the file, and what in it is missing, damaged or not supported.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::filesystem::path& model_directory);

}  // namespace bottomless::text
