// A set of byte strings, each with a number, that is searched along a text.
// Thread-safety: const use from any thread.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace bottomless::text {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;

  ByteTrie();

  // `value` >= 0. A string that is there already gets the new value.
  void insert(std::string_view key, int32_t value);

  // From a node along one byte; nothing if no string goes on so.
  std::optional<uint32_t> step(uint32_t node, char byte) const {
    const uint32_t next = node == kRoot ? first_[static_cast<uint8_t>(byte)] : find(node, byte);
    return next == kRoot ? std::nullopt : std::optional(next);
  }
  // The number of the string that ends at a node.
  std::optional<int32_t> value(uint32_t node) const {
    return values_[node] < 0 ? std::nullopt : std::optional(values_[node]);
  }

  struct Match {
    size_t bytes;
    int32_t value;
  };
  // The longest string that `text` begins with.
  std::optional<Match> longest_prefix(std::string_view text) const;

 private:
  // Of a node with a byte; free: nobody is a child of node and byte 0, as that is the root's, which stands apart.
  struct Child {
    uint64_t key = 0;
    uint32_t node = kRoot;
  };

  static uint64_t key_of(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }
  size_t place_of(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  uint32_t find(uint32_t node, char byte) const {
    const uint64_t key = key_of(node, byte);
    const size_t mask = children_.size() - 1;
    for (size_t at = place_of(key);; at = (at + 1) & mask) {
      if (children_[at].key == key || children_[at].key == 0) return children_[at].node;
    }
  }
  void add(const Child& child);

  std::array<uint32_t, 256> first_{};  // the root's children; the root itself: none
  std::vector<Child> children_;        // of the others: a flat table, at most half full
  unsigned shift_;
  size_t count_ = 0;
  std::vector<int32_t> values_;  // -1: no string ends here
};

}  // namespace bottomless::text
