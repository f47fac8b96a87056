// Numbers in a row, to which ranges can be added and of which the greatest in a range can be asked, both in a time that
// grows with the logarithm of how many there are.
// Thread-safety: none; a value.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bottomless {

class RangeMaximum {
 public:
  explicit RangeMaximum(size_t numbers);  // all 0

  // From `first` to before `end`, which is at most how many there are.
  void add(size_t first, size_t end, int64_t what);
  int64_t greatest(size_t first, size_t end) const;  // of an empty range: the least there is
  int64_t at(size_t index) const;

 private:
  // A binary tree: node n has 2n and 2n + 1 below it, the leaves begin at leaves_.
  struct Node {
    int64_t added = 0;     // to all below
    int64_t greatest = 0;  // of all below, `added` included
  };

  size_t leaves_;
  std::vector<Node> nodes_;
};

}  // namespace bottomless
