// A tokenizer.json. What can be read must encode and decode any text without harm.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tokenizers/json_tokenizer.h"
#include "unicode/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = bottomless::text::parse_tokenizer_json(text, "fuzz");
  if (!tokenizer.ok()) {
    BOTTOMLESS_CHECK(!tokenizer.error().message.empty(), "an error without a reason");
    return 0;
  }
  for (const std::string_view line : {text, std::string_view("a b  ab\xC3\xA9 <s>\n\xFF 12")}) {
    const auto ids = tokenizer.value()->encode(line);
    if (!ids.ok()) continue;
    for (const int32_t id : ids.value()) {
      BOTTOMLESS_CHECK(id >= 0 && id < tokenizer.value()->vocabulary_size(), "an id beyond all");
    }
    const auto decoded = tokenizer.value()->decode(ids.value());
    if (decoded.ok()) BOTTOMLESS_CHECK(bottomless::text::is_utf8(decoded.value()), "not UTF-8");
  }
  return 0;
}
