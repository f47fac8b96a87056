// What ranks offer each other, by the top byte of a key.
#pragma once
#include "ranks/exchange.h"

namespace bottomless {

enum class Role : uint8_t { parameter = 1, gradient, values, published, initial };

constexpr Exchange::Key role_key(Role role, uint64_t number) {
  return static_cast<uint64_t>(role) << 56 | number;
}

}  // namespace bottomless
