#include "base/text_file.h"

#include <charconv>
#include <fstream>
#include <limits>

namespace bottomless {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::string field(const std::filesystem::path& file, std::string_view key) {
  constexpr const char* kBetween = " \t:";
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(kBetween, key.size());
    if (value == key.size()) continue;  // a longer key that begins with this one
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

std::optional<Bytes> byte_field(const std::filesystem::path& file, std::string_view key) {
  constexpr Bytes kMost = std::numeric_limits<Bytes>::max();
  const std::string text = field(file, key);
  Bytes value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{})
    return std::nullopt;
  const Bytes unit = text.ends_with(" kB") ? 1_KiB : 1;
  return value <= kMost / unit ? value * unit : kMost;
}

}  // namespace bottomless
