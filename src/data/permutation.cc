#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace bottomless::data {

uint64_t mix(uint64_t a, uint64_t b) {
  // Multiplication carries bits up, shifts bring them down again; odd constants of no meaning, so nothing is lost.
  uint64_t x = a * 0x9E3779B97F4A7C15u ^ std::rotl(b, 32) * 0xD6E8FEB86659FD93u;
  for (int i = 0; i < 3; ++i) {
    x ^= x >> 32;
    x *= 0xD6E8FEB86659FD93u;
  }
  return x ^ x >> 32;
}

Permutation::Permutation(uint64_t size, uint64_t seed)
    : size_(size),
      // At least two bits a side: with one, too few orders of a handful of rows could be drawn.
      half_bits_(std::max(2u, (static_cast<unsigned>(std::bit_width(size - 1)) + 1) / 2)) {
  BOTTOMLESS_CHECK(size > 0, "an order of nothing");
  for (uint64_t i = 0; i < keys_.size(); ++i) keys_[i] = mix(seed, i + 1);
}

uint64_t Permutation::once(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = index >> half_bits_, right = index & mask;
  for (const uint64_t key : keys_) {
    const uint64_t next = left ^ (mix(right, key) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  BOTTOMLESS_CHECK(index < size_, "beyond the end");
  do index = once(index);
  while (index >= size_);
  return index;
}

}  // namespace bottomless::data
