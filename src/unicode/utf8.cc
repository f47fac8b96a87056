#include "unicode/utf8.h"

#include <array>
#include <cstdint>

namespace bottomless::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint8_t byte_at(std::string_view text, size_t at) { return static_cast<uint8_t>(text[at]); }

bool is_continuation(uint8_t byte) { return (byte & 0xC0) == 0x80; }

struct Part {
  size_t bytes;
  bool is_character;
};

// The first character, or the longest part of `text` that could have become one.
Part first_part(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {1, true};
  const size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (length == 0) return {1, false};
  // The second byte excludes forms that are too long, surrogates, and what lies beyond U+10FFFF.
  const uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (text.size() < 2 || byte_at(text, 1) < least || byte_at(text, 1) > most) return {1, false};
  for (size_t i = 2; i < length; ++i) {
    if (i >= text.size() || !is_continuation(byte_at(text, i))) return {i, false};
  }
  return {length, true};
}

}  // namespace

size_t bytes_of_character(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

Character first_character(std::string_view text) {
  const size_t bytes = bytes_of_character(text[0]);
  if (bytes == 1) return {static_cast<char32_t>(text[0]), 1};
  constexpr std::array<uint8_t, 5> kLeadBits = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t code = byte_at(text, 0) & kLeadBits[bytes];
  for (size_t i = 1; i < bytes; ++i) code = (code << 6) | (byte_at(text, i) & 0x3F);
  return {code, bytes};
}

Character last_character(std::string_view text) {
  size_t start = text.size() - 1;
  while (start > 0 && is_continuation(byte_at(text, start))) --start;
  return first_character(text.substr(start));
}

void append(char32_t code, std::string& to) {
  const auto put = [&](char32_t bits) { to.push_back(static_cast<char>(bits)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Part part = first_part(text);
    if (!part.is_character) return false;
    text.remove_prefix(part.bytes);
  }
  return true;
}

std::string replace_invalid(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const Part part = first_part(text);
    valid.append(part.is_character ? text.substr(0, part.bytes) : kReplacement);
    text.remove_prefix(part.bytes);
  }
  return valid;
}

bool is_whitespace(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

}  // namespace bottomless::text
