// A part of a text.
#pragma once
#include <cstddef>

namespace bottomless::text {

// Bytes [begin, end).
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

}  // namespace bottomless::text
