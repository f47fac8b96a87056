// Optimizer states of 8 bits an element: blocks of 256 elements, each with one float32 scale, the largest magnitude in it.
//
// The first moment m is kept as code = round(127 * sqrt(|m| / scale)) with the sign of m, the second moment v (never
// negative) as code = round(255 * (v / scale)^(1/4)), but at least 1 if v is not zero, because the update divides by
// sqrt(v). Both give small values more codes than large ones.
//
// A step of an optimizer rounds up or down by chance, in proportion to the distance. Rounded to nearest, a code that moves by less
// than half of its last place in a step stays for ever: with beta2 = 0.999, v would never fall but with the scale of its block
// (measured: sqrt(v) 9 times too large where most gradients of a block became a tenth and one did not). What is saved and loaded is
// rounded to nearest, which gives the same code again.
//
// Accuracy, with x = 127 * sqrt(|m| / scale) and y = 255 * (v / scale)^(1/4), the codes before rounding. Rounded to nearest:
//   m         off by at most (x + 1/4) / x^2 of itself: 0.8 % of the largest, 8 % at a hundredth of it;
//             below 1/64516 of the largest (x < 1/2) it becomes 0. Never off by more than 0.8 % of the largest.
//   sqrt(v)   off by at most (y + 1/4) / y^2 of itself: 0.4 % of the largest, 4 % at a hundredth of it;
//             below 1/65025 of the largest (y < 1) it becomes that.
// By chance, about twice that in one step, but right on average, and chance adds up over the steps that an average spans. With beta2 =
// 0.999, sqrt(v) has a standard deviation of 5 % where v is the largest of its block, 7 % at a third of its root, 15 % at a tenth
// (simulated with constant variance).
//
// Arithmetic in float32 adds less than a millionth to that. Where scale < 2^-117, v of code 1 may come back as 0.
//
// Where an element is not finite, the scale is infinite: that element comes back as infinity with its sign, finite ones as
// 0 (m) or as infinity (v that is not 0). A bad value stays visible.
// Thread-safety: pure functions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bottomless::optim {

inline constexpr size_t kBlock = 256;  // elements; the last block of an array may be shorter
constexpr size_t block_count(size_t elements) { return (elements + kBlock - 1) / kBlock; }

float block_scale(const float* values, size_t count);

// What a code is multiplied by to get the root of |m|, or the fourth root of v.
float first_root_unit(float scale);
float second_root_unit(float scale);

// What is added to a code before it is rounded to nearest. Not quite to half of a code on either side: the largest value
// must not get one more than there are.
inline constexpr uint16_t kToNearest = 0x8000;
constexpr float code_offset(uint16_t noise) {
  return (static_cast<float>(noise) - kToNearest) * (0.999f / 65536);
}

int8_t encode_first(float value, float scale, uint16_t noise = kToNearest);
float decode_first(int8_t code, float scale);

uint8_t encode_second(float value, float scale, uint16_t noise = kToNearest);
float decode_second(uint8_t code, float scale);

}  // namespace bottomless::optim
