// An order of [0, size) that is drawn by a seed and needs no array: a Feistel network over the next larger power of four,
// repeated where it leaves the range (fewer than four times on average). Equal seeds give equal orders on every machine.
// Thread-safety: immutable.
#pragma once
#include <array>
#include <cstdint>

namespace bottomless::data {

// The bits of both numbers in one, well mixed.
uint64_t mix(uint64_t a, uint64_t b);

class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed);  // size > 0

  uint64_t size() const { return size_; }
  uint64_t operator()(uint64_t index) const;  // index < size()

 private:
  uint64_t once(uint64_t index) const;

  uint64_t size_;
  unsigned half_bits_;
  std::array<uint64_t, 6> keys_;
};

}  // namespace bottomless::data
