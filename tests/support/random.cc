#include "support/random.h"

#include <cstdio>
#include <cstdlib>

namespace bottomless {
namespace {

uint64_t chosen_seed(uint64_t default_seed) {
  const char* chosen = std::getenv("BOTTOMLESS_SEED");
  return chosen == nullptr ? default_seed : std::strtoull(chosen, nullptr, 0);
}

}  // namespace

Random::Random(uint64_t default_seed) : seed_(chosen_seed(default_seed)), engine_(seed_) {
  std::fprintf(stderr, "BOTTOMLESS_SEED=%llu\n", static_cast<unsigned long long>(seed_));
}

Random::Random(uint64_t seed, uint64_t stream)
    : seed_(seed), engine_(seed ^ (stream + 1) * 0x9E3779B97F4A7C15ull) {}

}  // namespace bottomless
