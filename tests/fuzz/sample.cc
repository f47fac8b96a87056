// A line of a JSONL file, and what UTF-8 is in it.
#include "data/sample.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t valid = bottomless::data::valid_utf8_prefix(text);
  BOTTOMLESS_CHECK(valid <= size, "beyond the end");
  BOTTOMLESS_CHECK(bottomless::data::valid_utf8_prefix(text.substr(0, valid)) == valid,
                   "what was valid is not");
  const auto sample = bottomless::data::parse_sample(text, "fuzz");
  BOTTOMLESS_CHECK(sample.ok() || !sample.error().message.empty(), "an error without a reason");
  BOTTOMLESS_CHECK(!sample.ok() || valid == size, "a sample that is not UTF-8");
  return 0;
}
