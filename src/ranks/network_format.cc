#include "ranks/network_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "optim/formats.h"

namespace bottomless {
namespace {

optim::Element number(Element element) {
  BOTTOMLESS_CHECK(element != Element::bytes, "only numbers can be quantised");
  return element == Element::float32    ? optim::Element::float32
         : element == Element::bfloat16 ? optim::Element::bfloat16
                                        : optim::Element::float16;
}

}  // namespace

void encode(Element element, std::span<const std::byte> plain, std::span<std::byte> encoded) {
  const optim::Element type = number(element);
  const size_t count = plain.size() / element_bytes(element);
  std::byte* out = encoded.data();
  for (size_t first = 0; first < count; first += kNumbersPerScale) {
    const size_t numbers = std::min(kNumbersPerScale, count - first);
    float values[kNumbersPerScale];
    float largest = 0;
    bool finite = true;
    for (size_t i = 0; i < numbers; ++i) {
      values[i] = optim::load_element(type, plain.data(), first + i);
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::fabs(values[i]));
    }
    float scale = finite ? largest / 127 : NAN;
    if (scale < std::numeric_limits<float>::min()) scale = 0;  // 1 / scale must be finite
    const float factor = scale > 0 ? 1 / scale : 0;
    std::memcpy(out, &scale, sizeof scale);
    out += sizeof scale;
    for (size_t i = 0; i < numbers; ++i) {
      const float rounded = finite ? std::nearbyint(values[i] * factor) : 1;
      *out++ = static_cast<std::byte>(static_cast<int8_t>(std::clamp(rounded, -127.0f, 127.0f)));
    }
  }
}

void decode(Element element, std::span<const std::byte> encoded, std::span<std::byte> plain) {
  const optim::Element type = number(element);
  const size_t count = plain.size() / element_bytes(element);
  const std::byte* in = encoded.data();
  for (size_t first = 0; first < count; first += kNumbersPerScale) {
    const size_t numbers = std::min(kNumbersPerScale, count - first);
    float scale;
    std::memcpy(&scale, in, sizeof scale);
    in += sizeof scale;
    for (size_t i = 0; i < numbers; ++i)
      optim::store_element(type, plain.data(), first + i,
                           scale * static_cast<float>(static_cast<int8_t>(*in++)));
  }
}

}  // namespace bottomless
