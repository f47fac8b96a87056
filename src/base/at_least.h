// Sizes that are advised: what people read is typed in again, so it is never rounded down.
// Thread-safety: a free function without state.
#pragma once
#include <bottomless/bytes.h>

#include <string>

namespace bottomless {

// As format_bytes(), and parse_bytes() of it is `bytes` or a little more.
inline std::string format_at_least(Bytes bytes) {
  std::string text = format_bytes(bytes);
  for (Bytes more = bytes; parse_bytes(text).value() < bytes; text = format_bytes(more))
    more += more / 2048 + 1;
  return text;
}

}  // namespace bottomless
