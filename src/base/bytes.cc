#include <bottomless/bytes.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace bottomless {
namespace {

struct Unit {
  std::string_view name;
  Bytes bytes;
};

constexpr std::array<Unit, 9> kUnits{{{"b", 1},
                                      {"kib", 1_KiB},
                                      {"mib", 1_MiB},
                                      {"gib", 1_GiB},
                                      {"tib", 1_TiB},
                                      {"kb", 1000ull},
                                      {"mb", 1000'000ull},
                                      {"gb", 1000'000'000ull},
                                      {"tb", 1000'000'000'000ull}}};

Error bad_size(std::string_view text) {
  return {Code::invalid_argument,
          "read a size from '" + std::string(text) +
              "': expected a number and a unit (B, KiB, MiB, GiB, TiB, KB, MB, GB or TB), "
              "for example 4GiB"};
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  auto [rest, status] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (status != std::errc{} || number < 0) return bad_size(text);
  while (rest != end && *rest == ' ') ++rest;
  std::string unit(rest, end);
  for (char& c : unit) c = (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  if (unit.empty()) unit = "b";
  for (const Unit& known : kUnits) {
    if (known.name != unit) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (!(bytes < 0x1p63)) return bad_size(text);
    return static_cast<Bytes>(std::llround(bytes));
  }
  return bad_size(text);
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double number = static_cast<double>(bytes);
  size_t unit = 0;
  while (number >= 1024 && unit + 1 < kNames.size()) {
    number /= 1024;
    ++unit;
  }
  char text[48];
  const bool whole = number == std::floor(number);
  std::snprintf(text, sizeof text, whole ? "%.0f %s" : "%.2f %s", number, kNames[unit].data());
  return text;
}

}  // namespace bottomless
