// Best-fit allocation of intervals out of [0, end), with coalescing: the smallest hole that fits,
// the lowest among equals, and untouched ground only when none does. What is in use stays compact
// and the high-water mark low: by how much, tests/base/compactness_test.cc tells. Used for file
// extents and for address ranges alike.
// Thread-safety: none; the owner locks.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace bottomless {

class BestFit {
 public:
  explicit BestFit(uint64_t end) : end_(end) {}

  // An interval of `size` > 0 whose start is a multiple of `alignment`, or nothing.
  std::optional<uint64_t> allocate(uint64_t size, uint64_t alignment = 1);

  // Returns an interval that allocate() gave, or any part of one.
  void free(uint64_t start, uint64_t size);

  void grow(uint64_t new_end);  // new_end >= end()

  uint64_t end() const { return end_; }
  uint64_t used() const { return used_; }
  uint64_t tail() const { return end_ - top_; }        // how much is free right before end()
  uint64_t high_water() const { return high_water_; }  // the end of the highest interval ever given

 private:
  using Holes = std::map<uint64_t, uint64_t>;  // start -> size

  void insert(uint64_t start, uint64_t size);
  void erase(Holes::iterator hole);

  Holes holes_;                                      // below top_; neighbours are always merged
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (size, start) of each
  uint64_t top_ = 0;                                 // nothing is in use from here on
  uint64_t end_;
  uint64_t used_ = 0;
  uint64_t high_water_ = 0;
};

}  // namespace bottomless
