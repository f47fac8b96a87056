// UTF-8, the form of all text here. What comes from outside may be ill-formed: replace_invalid makes it well-formed,
// and everything behind it relies on that.
// Thread-safety: free functions without state.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace bottomless::text {

struct Character {
  char32_t code;
  size_t bytes;
};

// The first or the last character of well-formed text that is not empty.
Character first_character(std::string_view text);
Character last_character(std::string_view text);
// How many bytes the character that begins with `lead` has; `lead` begins one of well-formed text.
size_t bytes_of_character(char lead);

void append(char32_t code, std::string& to);

bool is_utf8(std::string_view text);
// Every longest part that begins like a character and is none becomes U+FFFD, as Python's errors="replace" has it.
std::string replace_invalid(std::string_view text);

// Unicode's White_Space.
bool is_whitespace(char32_t code);

}  // namespace bottomless::text
