// What the program may do with a range of addresses right now.
#pragma once
#include <cstdint>

namespace bottomless {

enum class Access : uint8_t { none, read, write };  // each includes the one before

}  // namespace bottomless
