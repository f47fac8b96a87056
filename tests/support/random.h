// Randomness that can be repeated. A test makes one Random with a seed of its own; BOTTOMLESS_SEED overrides it. The
// seed is printed when the test starts, because an abort has no time for it, and by every failure below
// BOTTOMLESS_TRACE_SEED.
// Thread-safety: one thread at a time; a second thread gets its own from fork().
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace bottomless {

class Random {
 public:
  explicit Random(uint64_t default_seed);

  uint64_t seed() const { return seed_; }
  uint64_t next() { return engine_(); }
  uint64_t below(uint64_t bound) { return engine_() % bound; }  // bound > 0
  uint64_t between(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }

  template <class T>
  T& pick(std::vector<T>& from) {
    return from[below(from.size())];
  }

  // An independent sequence that depends on the seed and on `stream` only; it prints nothing by itself.
  Random fork(uint64_t stream) const { return Random(seed_, stream); }

 private:
  Random(uint64_t seed, uint64_t stream);

  uint64_t seed_;
  std::mt19937_64 engine_;
};

// Put at the start of a random test: failures below it name the seed.
#define BOTTOMLESS_TRACE_SEED(random) \
  SCOPED_TRACE("repeat with BOTTOMLESS_SEED=" + std::to_string((random).seed()))

}  // namespace bottomless
