#include "unicode/forms.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// `tokenizers` normalises by the tables of Unicode 10. What has got a decomposition or a combining class since then is
// to it a character that stays as it is and that nothing moves past; utf8proc 2.8 knows Unicode 15. Found by comparing all
// characters; test_tokenizers.py repeats that. U+11A7 is different: utf8proc swallows it behind a Hangul syllable.
constexpr auto kStays = std::to_array<CodeRange>(
    {{0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x11A7, 0x11A7},
     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},
     {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x10781, 0x10785},
     {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC},
     {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
     {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11938, 0x11938},
     {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
     {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45},
     {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D},
     {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
     {0x1E4EC, 0x1E4EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}});

bool stays(char32_t code) {
  if (code < kStays.front().first) return false;
  const auto* range =
      std::lower_bound(kStays.begin(), kStays.end(), code,
                       [](const CodeRange& one, char32_t value) { return one.last < value; });
  return range != kStays.end() && code >= range->first;
}

void append_normalized(utf8proc_option_t options, std::string_view text, std::string& to) {
  if (text.empty()) return;
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made, options);
  BOTTOMLESS_CHECK(size >= 0, "normalising well-formed text ran out of memory");
  to.append(reinterpret_cast<const char*>(made), static_cast<size_t>(size));
  std::free(made);  // NOLINT: utf8proc has allocated it so
}

utf8proc_option_t options_of(Form form) {
  const bool composes = form == Form::nfc || form == Form::nfkc;
  const bool is_compatible = form == Form::nfkc || form == Form::nfkd;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (is_compatible ? UTF8PROC_COMPAT : 0);
  return static_cast<utf8proc_option_t>(options);
}

// Lower case that is newer than utf8proc 2.8: from Unicode 16 and 17.
constexpr auto kNewerLowercase = std::to_array<std::pair<char32_t, char32_t>>({{0x1C89, 0x1C8A},
                                                                               {0xA7CB, 0x264},
                                                                               {0xA7CC, 0xA7CD},
                                                                               {0xA7CE, 0xA7CF},
                                                                               {0xA7D2, 0xA7D3},
                                                                               {0xA7D4, 0xA7D5},
                                                                               {0xA7DA, 0xA7DB},
                                                                               {0xA7DC, 0x19B}});

char32_t lowercase_of(char32_t code) {
  for (const auto& [upper, lower] : kNewerLowercase) {
    if (code == upper) return lower;
  }
  if (code >= 0x10D50 && code <= 0x10D65) return code + 0x20;  // Garay
  if (code >= 0x16EA0 && code <= 0x16EB8) return code + 0x1B;  // Beria Erfe
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

}  // namespace

void normalize(Form form, std::string& text) {
  const bool is_ascii =
      std::all_of(text.begin(), text.end(), [](char byte) { return (byte & 0x80) == 0; });
  if (is_ascii) return;  // in every form already
  const utf8proc_option_t options = options_of(form);
  std::string normalized;
  normalized.reserve(text.size());
  const std::string_view all = text;
  size_t done = 0;
  for (size_t at = 0; at < all.size();) {
    const Character character = first_character(all.substr(at));
    if (stays(character.code)) {
      append_normalized(options, all.substr(done, at - done), normalized);
      normalized += all.substr(at, character.bytes);
      done = at + character.bytes;
    }
    at += character.bytes;
  }
  append_normalized(options, all.substr(done), normalized);
  text = std::move(normalized);
}

void make_lowercase(std::string& text) {
  std::string lower;
  lower.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Character character = first_character(rest);
    rest.remove_prefix(character.bytes);
    if (character.code == 0x130) {
      lower += "i\xCC\x87";  // İ is the only one that becomes two characters
    } else {
      append(lowercase_of(character.code), lower);
    }
  }
  text = std::move(lower);
}

}  // namespace bottomless::text
