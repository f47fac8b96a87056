// A set of byte strings, each with a number, that is searched along a text.
// Thread-safety: const use from any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bottomless::text {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;

  ByteTrie();

  // `value` >= 0. A string that is there already gets the new value.
  void insert(std::string_view key, int32_t value);

  // From a node along one byte; nothing if no string goes on so.
  std::optional<uint32_t> step(uint32_t node, char byte) const;
  // The number of the string that ends at a node.
  std::optional<int32_t> value(uint32_t node) const;

  struct Match {
    size_t bytes;
    int32_t value;
  };
  // The longest string that `text` begins with.
  std::optional<Match> longest_prefix(std::string_view text) const;

 private:
  std::unordered_map<uint64_t, uint32_t> children_;  // (node, byte) -> node
  std::vector<int32_t> values_;                      // -1: no string ends here
};

}  // namespace bottomless::text
