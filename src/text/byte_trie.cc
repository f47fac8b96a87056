#include "text/byte_trie.h"

namespace bottomless::text {
namespace {

constexpr int32_t kNone = -1;

uint64_t key_of(uint32_t node, char byte) {
  return (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
}

}  // namespace

ByteTrie::ByteTrie() : values_{kNone} {}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (const char byte : key) {
    const auto [child, is_new] =
        children_.emplace(key_of(node, byte), static_cast<uint32_t>(values_.size()));
    if (is_new) values_.push_back(kNone);
    node = child->second;
  }
  values_[node] = value;
}

std::optional<uint32_t> ByteTrie::step(uint32_t node, char byte) const {
  const auto child = children_.find(key_of(node, byte));
  if (child == children_.end()) return {};
  return child->second;
}

std::optional<int32_t> ByteTrie::value(uint32_t node) const {
  if (values_[node] == kNone) return {};
  return values_[node];
}

std::optional<ByteTrie::Match> ByteTrie::longest_prefix(std::string_view text) const {
  std::optional<Match> longest;
  uint32_t node = kRoot;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto next = step(node, text[i]);
    if (!next) break;
    node = *next;
    if (const auto found = value(node)) longest = Match{i + 1, *found};
  }
  return longest;
}

}  // namespace bottomless::text
