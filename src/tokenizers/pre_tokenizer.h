// How a text is cut into words: the "pre_tokenizer" of a tokenizer.json.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "unicode/regex.h"
#include "unicode/span.h"

namespace bottomless::text {

// A text and the words in it: not empty, from left to right. What belongs to no word is dropped.
struct Words {
  std::string text;
  std::vector<Span> spans;
  bool begin_the_input;  // nothing stood before `text`
  std::vector<size_t>
      origins;  // of each byte of `text`, as in Normalizer::trace; empty: nobody asks
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer();
  // Cuts the words further, and may rewrite the text.
  virtual Result<void> apply(Words& words) const = 0;
};

// null gives nullptr: the text is one word. Throws json::exception where a field is missing or of another type.
Result<std::unique_ptr<PreTokenizer>> parse_pre_tokenizer(const nlohmann::json& from);

}  // namespace bottomless::text
