#include "tokenizers/byte_trie.h"

#include <utility>

namespace bottomless::text {
namespace {

constexpr int32_t kNoValue = -1;
constexpr unsigned kFirstBits = 4;

}  // namespace

ByteTrie::ByteTrie()
    : children_(size_t{1} << kFirstBits), shift_(64 - kFirstBits), values_{kNoValue} {}

void ByteTrie::add(const Child& child) {
  if (2 * (count_ + 1) > children_.size()) {
    const std::vector<Child> before = std::exchange(children_, {});
    children_.resize(2 * before.size());
    --shift_;
    count_ = 0;
    for (const Child& each : before) {
      if (each.key != 0) add(each);
    }
  }
  size_t at = place_of(child.key);
  while (children_[at].key != 0) at = (at + 1) & (children_.size() - 1);
  children_[at] = child;
  ++count_;
}

void ByteTrie::insert(std::string_view key, int32_t value) {
  uint32_t node = kRoot;
  for (const char byte : key) {
    const auto next = step(node, byte);
    const auto added = static_cast<uint32_t>(values_.size());
    if (!next) {
      values_.push_back(kNoValue);
      if (node == kRoot) {
        first_[static_cast<uint8_t>(byte)] = added;
      } else {
        add({key_of(node, byte), added});
      }
    }
    node = next.value_or(added);
  }
  values_[node] = value;
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
