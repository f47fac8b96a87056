// GPT-2's way of writing bytes as characters that can be seen: printable Latin-1 stays, the other bytes are U+0100 and on.
// Thread-safety: free functions without state.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace bottomless::text {

// How GPT-2 cuts a text into words.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

char32_t character_of_byte(uint8_t byte);
std::optional<uint8_t> byte_of_character(char32_t character);

void append_as_characters(std::string_view bytes, std::string& to);

}  // namespace bottomless::text
