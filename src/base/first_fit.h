// First-fit allocation of intervals out of [0, end), with coalescing. Low addresses are used
// first, so what is in use stays compact and the high-water mark stays low. Used for file
// extents and for address ranges alike.
// Thread-safety: none; the owner locks.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace bottomless {

class FirstFit {
 public:
  explicit FirstFit(uint64_t end);

  // The lowest free interval of `size` whose start is a multiple of `alignment`, or nothing. `size`
  // > 0.
  std::optional<uint64_t> allocate(uint64_t size, uint64_t alignment = 1);

  // Returns an interval that allocate() gave, or any part of one.
  void free(uint64_t start, uint64_t size);

  void grow(uint64_t new_end);  // new_end >= end()

  uint64_t end() const { return end_; }
  uint64_t used() const { return used_; }
  uint64_t tail() const;                               // how much is free right before end()
  uint64_t high_water() const { return high_water_; }  // the end of the highest interval ever given

 private:
  void insert(uint64_t start, uint64_t size);
  void erase(std::map<uint64_t, uint64_t>::iterator hole);

  std::map<uint64_t, uint64_t> holes_;  // start -> size; neighbours are always merged
  std::map<int, std::set<uint64_t>>
      by_magnitude_;  // floor(log2(size)) -> starts, so that a search skips small holes
  uint64_t end_ = 0;
  uint64_t used_ = 0;
  uint64_t high_water_ = 0;
};

}  // namespace bottomless
