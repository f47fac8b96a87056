#include "optim/quantised.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace bottomless::optim {

namespace {

constexpr uint32_t kInfinityBits = 0x7F800000;

// Finite, so that a zero times it is zero; two factors of it and any other code make infinity.
float unit(float root_of_scale, float codes) {
  return std::min(root_of_scale / codes, std::numeric_limits<float>::max());
}

}  // namespace

float block_scale(const float* values, size_t count) {
  // The bits of magnitudes are ordered like the magnitudes, and NaN comes last.
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFF);
  return std::bit_cast<float>(std::min(largest, kInfinityBits));
}

// Roots of quotients are taken as quotients of roots, which neither overflow nor underflow.
float first_root_unit(float scale) { return unit(std::sqrt(scale), 127); }
float second_root_unit(float scale) { return unit(std::sqrt(std::sqrt(scale)), 255); }

int8_t encode_first(float value, float scale, uint16_t noise) {
  if (scale == 0) return 0;
  if (std::isinf(scale)) return std::isfinite(value) ? 0 : std::signbit(value) ? -127 : 127;
  const float exact = std::sqrt(std::fabs(value)) * (127.0f / std::sqrt(scale));
  const float code = std::nearbyint(exact + code_offset(noise));
  return static_cast<int8_t>(std::signbit(value) ? -code : code);
}

float decode_first(int8_t code, float scale) {
  const float root = static_cast<float>(code) * first_root_unit(scale);
  return root * std::fabs(root);
}

uint8_t encode_second(float value, float scale, uint16_t noise) {
  if (value == 0) return 0;
  if (std::isinf(scale)) return std::isfinite(value) ? 1 : 255;
  const float exact = std::sqrt(std::sqrt(value)) * (255.0f / std::sqrt(std::sqrt(scale)));
  const float code = std::nearbyint(exact + code_offset(noise));
  return static_cast<uint8_t>(std::max(code, 1.0f));
}

float decode_second(uint8_t code, float scale) {
  const float fourth_root = static_cast<float>(code) * second_root_unit(scale);
  const float root = fourth_root * fourth_root;
  return root * root;
}

}  // namespace bottomless::optim
