// Of a transfer: somebody waits for it, or it is done ahead of a use and gives way to those.
#pragma once
#include <cstdint>

namespace bottomless {

enum class Priority : uint8_t { demand, prefetch };

}  // namespace bottomless
