// The learned pairs of a byte-pair encoding, and their application to a word.
// Thread-safety: const use from any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bottomless::text {

class Merges {
 public:
  // Room for so many pairs.
  explicit Merges(size_t pairs = 0);

  // Pairs are added in the order in which they were learned; of equal ones the last counts.
  void add(int32_t left, int32_t right, int32_t merged);

  // Replaces pairs in `symbols` until none is left: always the pair learned first, and of several the leftmost.
  void apply(std::vector<int32_t>& symbols) const;

 private:
  struct Merge {
    uint64_t pair;
    uint32_t rank;
    int32_t merged;
  };

  const Merge* find(int32_t left, int32_t right) const;
  size_t place_of(uint64_t pair) const;
  void apply_by_search(std::vector<int32_t>& symbols) const;
  void apply_by_queue(std::vector<int32_t>& symbols) const;

  std::vector<Merge> table_;  // open addressing, at most half full
  uint32_t next_rank_ = 0;
};

}  // namespace bottomless::text
