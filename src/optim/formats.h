// The number formats of parameters, gradients and optimizer states, and their conversion from and to float32, one element
// at a time; the vector code gives the same bits.
// Conversions round to nearest, ties to even; what is too large becomes infinite; denormals are exact; NaN stays NaN, but
// which NaN is not promised.
// Thread-safety: pure functions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bottomless::optim {

enum class Element : uint8_t { float32, bfloat16, float16 };
enum class StateFormat : uint8_t { float32, bfloat16, quantised8 };  // quantised8: see quantised.h

// How a state becomes bfloat16. Rounded to nearest, an average that loses less than half of its last bit in a step stays
// as it is forever: with beta2 = 0.999, v never falls (measured: sqrt(v) ends up 1.9 times too large after gradients
// shrank threefold). Rounded up or down by chance, in proportion to the distance, it is right on average.
enum class Rounding : uint8_t { nearest, stochastic };

constexpr size_t bytes_of(Element element) { return element == Element::float32 ? 4 : 2; }
constexpr size_t bytes_of(StateFormat format) {  // without the scales of quantised8
  return format == StateFormat::float32 ? 4 : format == StateFormat::bfloat16 ? 2 : 1;
}

float bfloat16_to_float32(uint16_t bits);
uint16_t float32_to_bfloat16(float value);
// Away from zero with a probability of what lies beyond the bits that are kept. `noise` is uniform.
uint16_t float32_to_bfloat16(float value, uint16_t noise);

float float16_to_float32(uint16_t bits);
uint16_t float32_to_float16(float value);

float load_element(Element element, const void* from, size_t index);
void store_element(Element element, void* to, size_t index, float value);

// The chance of stochastic rounding: depends on the state, the step and the element's index in its block (quantised.h)
// only, so that a step can be repeated, in any number of threads.
enum class Moment : uint8_t { first, second };
uint16_t rounding_noise(Moment moment, uint64_t step, size_t index_in_block);

}  // namespace bottomless::optim
