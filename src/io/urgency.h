// Whether somebody waits for a transfer now, or it is done ahead of a need and must not be in the
// way.
#pragma once
#include <cstdint>

namespace bottomless {

enum class Urgency : uint8_t { now, ahead };

}  // namespace bottomless
