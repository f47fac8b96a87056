#include "checkpoint/checksum.h"

#include <xxhash.h>

#include "base/check.h"

namespace bottomless {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr size_t kLength = 16;

}  // namespace

void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Checksum::Checksum() : state_(XXH3_createState()) {
  BOTTOMLESS_CHECK(state_ != nullptr, "no memory for the state of a checksum");
  XXH3_64bits_reset(state_.get());
}

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

uint64_t Checksum::of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

std::string hexadecimal(uint64_t number) {
  std::string digits(kLength, '0');
  for (size_t i = kLength; i-- > 0; number >>= 4) digits[i] = kDigits[number & 15];
  return digits;
}

std::optional<uint64_t> parse_hexadecimal(std::string_view digits) {
  if (digits.size() != kLength) return std::nullopt;
  uint64_t number = 0;
  for (const char digit : digits) {
    const size_t value = kDigits.find(digit);
    if (value == std::string_view::npos) return std::nullopt;
    number = number << 4 | value;
  }
  return number;
}

}  // namespace bottomless
