// A tokenizer.model. What can be read must encode and decode any text without harm.
#include "tokenizers/sentencepiece/sentencepiece.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = bottomless::text::parse_sentencepiece(
      bytes, {}, bottomless::text::BlankInFront::of_text, "fuzz");
  if (!tokenizer.ok()) {
    BOTTOMLESS_CHECK(!tokenizer.error().message.empty(), "an error without a reason");
    return 0;
  }
  for (const std::string_view line : {bytes, std::string_view("a b  ab\xC3\xA9 <s>\n\xFF 12")}) {
    const auto ids = tokenizer.value()->encode(line);
    if (!ids.ok()) continue;
    for (const int32_t id : ids.value()) {
      BOTTOMLESS_CHECK(id >= 0 && id < tokenizer.value()->vocabulary_size(), "an id beyond all");
    }
    BOTTOMLESS_CHECK(tokenizer.value()->decode(ids.value()).ok(), "no text");
  }
  return 0;
}
