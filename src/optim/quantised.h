// Optimizer states of 8 bits an element: blocks of 256 elements, each with one float32 scale, the largest magnitude in it.
//
// A code is c = round(codes * root(|x|) / root(scale)), where `root` is a pseudo-root: the bits of the float32 shifted right by one (m,
// codes = 127) or by two (v, codes = 255). That halves or quarters the exponent and is linear between powers of two, so it lies at
// most 6 % above a square root or 11 % above a fourth root, times a power of two that cancels. It takes no arithmetic, and neither
// does the way back. Both give small values more codes than large ones. m has the sign with its code; v (never negative) has at
// least code 1 if it is not zero, because the update divides by sqrt(v).
//
// A step of an optimizer rounds up or down by chance, in proportion to the distance. Rounded to nearest, a code that moves by less
// than half of its last place in a step stays for ever: with beta2 = 0.999, v would never fall but with the scale of its block
// (measured: sqrt(v) 9 times too large where most gradients of a block became a tenth and one did not). What is saved and loaded is
// rounded to nearest, which gives the same code again.
//
// Accuracy, with x = 127 * sqrt(|m| / scale) and y = 255 * (v / scale)^(1/4). Rounded to nearest:
//   m         off by at most 1.6 / x of itself: 1.2 % of the largest, 13 % at a hundredth of it; below about 1/64516 of the
//             largest (x < 1/2) it becomes 0. Never off by more than 1.2 % of the largest.
//   sqrt(v)   off by at most 1.8 / y of itself: 0.7 % of the largest, 7 % at a hundredth of it; below about 1/65025 of the
//             largest (y < 1) it becomes that.
// By chance, about twice that in one step, but right on average, and chance adds up over the steps that an average spans. With beta2 =
// 0.999, sqrt(v) has a standard deviation of 3 % where v is the largest of its block, 6 % at a third of its root, 8 % at a tenth
// (simulated with gradients of constant variance; float32 has 1.6 %).
//
// Arithmetic in float32 adds less than a millionth to that. A scale below CodeBook::smallest_scale counts as that.
//
// Where an element is not finite, the scale is infinite: that element comes back as infinity with its sign, finite ones as
// 0 (m) or as infinity (v that is not 0). A bad value stays visible.
// Thread-safety: pure functions.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>

namespace bottomless::optim {

inline constexpr size_t kBlock = 256;  // elements; the last block of an array may be shorter
constexpr size_t block_count(size_t elements) { return (elements + kBlock - 1) / kBlock; }

float block_scale(const float* values, size_t count);

constexpr float pseudo_root(float value, int shift) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) >> shift);
}
constexpr float pseudo_power(float root, int shift) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(root) << shift);
}

// How a moment is coded: the shift of its pseudo-root, the code of the largest, the least scale that makes no number below too small
// for float32, and the code of what is not finite: a power of two, so that it comes back as infinity exactly.
struct CodeBook {
  int shift;
  float codes, smallest_scale, infinite_code;

  constexpr float root_of_scale(float scale) const {
    return pseudo_root(scale < smallest_scale ? smallest_scale : scale, shift);
  }
  constexpr bool is_finite(float scale) const { return scale <= 0x1.fffffep127f; }
  // What a pseudo-root is multiplied by to get a code, and a code to get a pseudo-root.
  constexpr float code_factor(float scale) const { return codes / root_of_scale(scale); }
  constexpr float root_unit(float scale) const {
    return root_of_scale(scale) / (is_finite(scale) ? codes : infinite_code);
  }
};
inline constexpr CodeBook kFirstCodes{1, 127, 0x1p-110f, 64};
inline constexpr CodeBook kSecondCodes{2, 255, 0x1p-90f, 128};

// What is added to a code before it is rounded to nearest. Not quite to half of a code on either side: the largest value
// must not get one more than there are.
inline constexpr uint16_t kToNearest = 0x8000;
constexpr float code_offset(uint16_t noise) {
  return (static_cast<float>(noise) - kToNearest) * (0.9999f / 65536);
}

int8_t encode_first(float value, float scale, uint16_t noise = kToNearest);
float decode_first(int8_t code, float scale);

uint8_t encode_second(float value, float scale, uint16_t noise = kToNearest);
float decode_second(uint8_t code, float scale);

}  // namespace bottomless::optim
