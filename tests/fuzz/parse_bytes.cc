// Sizes as a person may type them, after --memory for example.
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"

using bottomless::Bytes;
using bottomless::Result;

namespace {

// Larger ones are refused from 8 EiB on, and so may be what they are rounded to in print.
constexpr Bytes kMost = Bytes{1} << 62;

bool agree(const Result<Bytes>& a, const Result<Bytes>& b) {
  return a.ok() == b.ok() && (!a.ok() || a.value() == b.value());
}

// Of two decimals at least one before the point: half a percent.
bool nearly(Bytes a, Bytes b) { return (a > b ? a - b : b - a) <= a / 200 + 1; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const Result<Bytes> parsed = bottomless::parse_bytes(text);

  std::string lower = text;
  for (char& c : lower) c = (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  BOTTOMLESS_CHECK(agree(parsed, bottomless::parse_bytes(lower)), "case matters");

  if (!parsed.ok()) {
    BOTTOMLESS_CHECK(parsed.error().message.find(text) != std::string::npos,
                     "the message does not say what was read");
    return 0;
  }
  if (text.size() < 16 && text.find_first_not_of("0123456789") == std::string::npos) {
    BOTTOMLESS_CHECK(parsed.value() == std::stoull(text), "a plain number counts bytes");
  }
  if (parsed.value() > kMost) return 0;
  const std::string printed = bottomless::format_bytes(parsed.value());
  const Result<Bytes> again = bottomless::parse_bytes(printed);
  BOTTOMLESS_CHECK(again.ok(), "what was printed cannot be read");
  BOTTOMLESS_CHECK(nearly(parsed.value(), again.value()), "what was printed is another size");
  return 0;
}
