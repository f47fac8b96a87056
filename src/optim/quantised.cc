#include "optim/quantised.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace bottomless::optim {

namespace {

constexpr uint32_t kInfinityBits = 0x7F800000;

}  // namespace

float block_scale(const float* values, size_t count) {
  // The bits of magnitudes are ordered like the magnitudes, and NaN comes last.
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(std::min(largest, kInfinityBits));
}

int8_t encode_first(float value, float scale, uint16_t noise) {
  float code = std::isfinite(value) ? 0 : kFirstCodes.infinite_code;
  if (kFirstCodes.is_finite(scale)) {
    const float root = pseudo_root(std::fabs(value), kFirstCodes.shift);
    code = std::nearbyint(root * kFirstCodes.code_factor(scale) + code_offset(noise));
  }
  return static_cast<int8_t>(std::signbit(value) ? -code : code);
}

float decode_first(int8_t code, float scale) {
  const float root = static_cast<float>(code) * kFirstCodes.root_unit(scale);
  return std::copysign(pseudo_power(root, kFirstCodes.shift), root);
}

uint8_t encode_second(float value, float scale, uint16_t noise) {
  if (value == 0) return 0;
  if (!kSecondCodes.is_finite(scale)) return static_cast<uint8_t>(kSecondCodes.infinite_code);
  const float root = pseudo_root(value, kSecondCodes.shift);
  const float code = std::nearbyint(root * kSecondCodes.code_factor(scale) + code_offset(noise));
  return static_cast<uint8_t>(std::max(code, 1.0f));
}

float decode_second(uint8_t code, float scale) {
  const float root = static_cast<float>(code) * kSecondCodes.root_unit(scale);
  return pseudo_power(root, kSecondCodes.shift);
}

}  // namespace bottomless::optim
