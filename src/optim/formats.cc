#include "optim/formats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace bottomless::optim {

float bfloat16_to_float32(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t float32_to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // The payload of a NaN may lie in the lower half alone, and a carry would run into the sign.
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint32_t last_kept = bits >> 16 & 1;
  return static_cast<uint16_t>((bits + 0x7FFF + last_kept) >> 16);
}

uint16_t float32_to_bfloat16(float value, uint16_t noise) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + noise) >> 16);
}

float float16_to_float32(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int mantissa = bits & 0x3FF;
  float magnitude;
  if (exponent == 31) {
    magnitude = mantissa == 0 ? std::numeric_limits<float>::infinity()
                              : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t float32_to_float16(float value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7E00);
  // Half way between the largest float16 and what would come after it.
  if (magnitude >= 65520.0f) return static_cast<uint16_t>(sign | 0x7C00);
  const int exponent = magnitude == 0 ? -14 : std::max(std::ilogb(magnitude), -14);
  // 1024 to 2048 units of the last place, less for a denormal: the leading one adds itself to the exponent.
  const auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 14) << 10) + units));
}

float load_element(Element element, const void* from, size_t index) {
  switch (element) {
    case Element::float32:
      return static_cast<const float*>(from)[index];
    case Element::bfloat16:
      return bfloat16_to_float32(static_cast<const uint16_t*>(from)[index]);
    case Element::float16:
      break;
  }
  return float16_to_float32(static_cast<const uint16_t*>(from)[index]);
}

void store_element(Element element, void* to, size_t index, float value) {
  switch (element) {
    case Element::float32:
      static_cast<float*>(to)[index] = value;
      return;
    case Element::bfloat16:
      static_cast<uint16_t*>(to)[index] = float32_to_bfloat16(value);
      return;
    case Element::float16:
      static_cast<uint16_t*>(to)[index] = float32_to_float16(value);
  }
}

uint16_t rounding_noise(Moment moment, uint64_t step, size_t index_in_block) {
  // Each multiplication spreads the differences of its input over the upper bits, each shift brings them down again.
  uint64_t mixed = (step * 2 + static_cast<uint64_t>(moment)) * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 32;
  mixed = (mixed + index_in_block) * 0xD6E8FEB86659FD93u;
  mixed ^= mixed >> 32;
  mixed *= 0xD6E8FEB86659FD93u;
  return static_cast<uint16_t>(mixed >> 48);
}

}  // namespace bottomless::optim
