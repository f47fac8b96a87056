// Byte counts as people write them: "4GiB", "512MiB", "1.5GB", and literals such as 4_GiB.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace bottomless {

using Bytes = std::uint64_t;

inline namespace literals {
constexpr Bytes operator""_KiB(unsigned long long n) { return n << 10; }
constexpr Bytes operator""_MiB(unsigned long long n) { return n << 20; }
constexpr Bytes operator""_GiB(unsigned long long n) { return n << 30; }
constexpr Bytes operator""_TiB(unsigned long long n) { return n << 40; }
}  // namespace literals

// Reads a size: a number, optionally with a fraction, and a unit (B, KiB, MiB, GiB, TiB, or the
// decimal KB, MB, GB, TB; case does not matter, a space may stand before the unit). A plain number
// counts bytes.
Result<Bytes> parse_bytes(std::string_view text);

// Writes a size with the largest binary unit that keeps it at or above one: "1.50 GiB", "768 B".
std::string format_bytes(Bytes bytes);

}  // namespace bottomless
