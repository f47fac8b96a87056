#include "tokenizers/bpe/byte_level.h"

#include <array>

#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

constexpr bool is_shown_as_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
}

constexpr auto kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    characters[byte] = is_shown_as_itself(byte) ? byte : next++;
  }
  return characters;
}();

constexpr size_t kEnd = 0x144;  // behind the last of them
constexpr int16_t kNoByte = -1;

constexpr auto kBytes = [] {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(kNoByte);
  for (unsigned byte = 0; byte < 256; ++byte) {
    bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}();

}  // namespace

char32_t character_of_byte(uint8_t byte) { return kCharacters[byte]; }

std::optional<uint8_t> byte_of_character(char32_t character) {
  if (character >= kEnd || kBytes[character] == kNoByte) return {};
  return static_cast<uint8_t>(kBytes[character]);
}

void append_as_characters(std::string_view bytes, std::string& to) {
  for (const char byte : bytes) append(kCharacters[static_cast<uint8_t>(byte)], to);
}

}  // namespace bottomless::text
