// What ranks of a sharded model offer and tell each other.
#pragma once
#include "ranks/exchange.h"

namespace bottomless {

// By the top byte of a key.
enum class Role : uint8_t { parameter = 1, gradient, values, published, initial, node_share };

constexpr Exchange::Key role_key(Role role, uint64_t number) {
  return static_cast<uint64_t>(role) << 56 | number;
}

// Notice::what, besides Reduction's.
inline constexpr uint64_t kStepBegins = 3, kWritten = 4, kLeaving = 5, kStepFollows = 6, kSums = 7,
                          kParted = 8;

}  // namespace bottomless
