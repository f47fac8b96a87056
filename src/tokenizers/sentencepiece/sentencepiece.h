// A tokenizer.model of sentencepiece, of the kinds BPE and unigram. The library itself is not linked: the global names of
// Debian's (FLAGS_minloglevel, protobuf) are torch's, too, and mean something else there.
// Thread-safety: free functions without state; what they give is safe for const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizers/added_tokens.h"
#include "tokenizers/tokenizer.h"

namespace bottomless::text {

// The id of an added token that is one of the pieces; where there is no such piece, it is left out.
inline constexpr int32_t kIdOfPiece = -1;

// Where a blank is put in front of a text: where it begins, or behind every added token, too (transformers' "legacy").
enum class BlankInFront { of_text, of_each_part };

// `bytes` is the whole file. `added` are found in a text before anything else is done; without them ids are those of
// the PyPI package `sentencepiece`. Knows bos, eos and pad. Errors begin with `attempted`.
Result<std::unique_ptr<Tokenizer>> parse_sentencepiece(std::string_view bytes,
                                                       std::vector<AddedToken> added,
                                                       BlankInFront blank,
                                                       const std::string& attempted);

}  // namespace bottomless::text
