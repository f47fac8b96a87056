#include "tokenizers/sentencepiece/normalizer.h"

#include <algorithm>
#include <cstring>

#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

// The fields of one unit of the double array.
bool has_leaf(uint32_t unit) { return ((unit >> 8) & 1) != 0; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t offset_of(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Result<SentencepieceNormalizer> SentencepieceNormalizer::make(const SentencepieceFile& file) {
  SentencepieceNormalizer made;
  made.adds_space_in_front_ = file.adds_space_in_front;
  made.removes_extra_spaces_ = file.removes_extra_spaces;
  if (!file.escapes_spaces) made.space_ = " ";
  const std::string& map = file.character_map;
  if (map.empty()) return made;
  uint32_t trie_bytes = 0;
  if (map.size() >= sizeof(trie_bytes)) std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % sizeof(uint32_t) != 0 ||
      trie_bytes > map.size() - sizeof(trie_bytes)) {
    return Error{Code::corrupt, "its map of characters is damaged"};
  }
  made.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(made.units_.data(), map.data() + sizeof(trie_bytes), trie_bytes);
  made.replacements_ = map.substr(sizeof(trie_bytes) + trie_bytes);
  return made;
}

std::pair<size_t, uint32_t> SentencepieceNormalizer::longest_mapped(std::string_view text) const {
  std::pair<size_t, uint32_t> longest{0, 0};
  if (units_.empty()) return longest;
  size_t place = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    place ^= byte;
    if (place >= units_.size() || label_of(units_[place]) != byte) break;
    const uint32_t unit = units_[place];
    place ^= offset_of(unit);
    if (place >= units_.size()) break;
    if (has_leaf(unit)) longest = {i + 1, value_of(units_[place])};
  }
  return longest;
}

std::pair<std::string_view, size_t> SentencepieceNormalizer::normalize_prefix(
    std::string_view text, const ByteTrie& kept) const {
  if (const auto found = kept.longest_prefix(text)) {
    return {text.substr(0, found->bytes), found->bytes};
  }
  const auto [bytes, value] = longest_mapped(text);
  if (bytes > 0 && value < replacements_.size()) {
    const std::string_view all = replacements_;
    return {all.substr(value, all.find('\0', value) - value), bytes};
  }
  const size_t character = bytes_of_character(text[0]);
  return {text.substr(0, character), character};
}

std::string SentencepieceNormalizer::apply(std::string_view text, const ByteTrie& kept, Place place,
                                           std::vector<size_t>* origins) const {
  const char* const begin = text.data();
  if (removes_extra_spaces_) {
    while (!text.empty()) {
      const auto [becomes, bytes] = normalize_prefix(text, kept);
      if (becomes != " ") break;
      text.remove_prefix(bytes);
    }
  }
  std::string normalized;
  if (text.empty()) return normalized;
  normalized.reserve(text.size() + text.size() / 2);
  const auto came_from = [&](const char* at) {
    if (origins != nullptr) origins->resize(normalized.size(), static_cast<size_t>(at - begin));
  };
  if (adds_space_in_front_ && place == Place::front) normalized += space_;
  came_from(text.data());
  bool follows_space = removes_extra_spaces_;
  while (!text.empty()) {
    auto [becomes, bytes] = normalize_prefix(text, kept);
    const char* const from = text.data();
    text.remove_prefix(bytes);
    while (follows_space && becomes.starts_with(' ')) becomes.remove_prefix(1);
    for (const char byte : becomes) {
      if (byte == ' ') {
        normalized += space_;
      } else {
        normalized += byte;
      }
    }
    came_from(from);
    if (!becomes.empty()) follows_space = becomes.ends_with(' ');
    if (!removes_extra_spaces_) follows_space = false;
  }
  while (removes_extra_spaces_ && normalized.ends_with(space_)) {
    normalized.resize(normalized.size() - space_.size());
  }
  if (origins != nullptr) origins->resize(normalized.size());
  return normalized;
}

}  // namespace bottomless::text
