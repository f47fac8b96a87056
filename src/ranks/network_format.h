// Numbers as they cross the network where less traffic is worth an error: 8 bits each, and a float32 for every 256 of
// them. Each is off by at most 1/254 of the largest of its 256, and what its own type rounds; numbers below 1.5e-36 become 0
// where there are no larger ones.
// Thread-safety: pure functions.
#pragma once
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace bottomless {

enum class Element : uint8_t { bytes, float32, bfloat16, float16 };  // bytes: not numbers
enum class Format : uint8_t { plain, eight_bits };

inline constexpr size_t kNumbersPerScale = 256;

constexpr Bytes element_bytes(Element element) {
  return element == Element::float32 ? 4 : element == Element::bytes ? 1 : 2;
}
// What `bytes` of plain numbers take.
constexpr Bytes encoded_bytes(Bytes bytes, Element element) {
  const Bytes numbers = bytes / element_bytes(element);
  return numbers + (numbers + kNumbersPerScale - 1) / kNumbersPerScale * sizeof(float);
}

// `encoded` has encoded_bytes(plain.size()) bytes. What is not finite stays so, and takes its 256 with it.
void encode(Element element, std::span<const std::byte> plain, std::span<std::byte> encoded);
void decode(Element element, std::span<const std::byte> encoded, std::span<std::byte> plain);

}  // namespace bottomless
