#include "base/suggestion.h"

#include <algorithm>
#include <cstddef>

namespace bottomless {
namespace {

// Damerau's distance, where no letter takes part in two changes.
size_t changes_between(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> table(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) table[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) table[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t other = a[i - 1] == b[j - 1] ? 0 : 1;
      table[i][j] =
          std::min({table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + other});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) table[i][j] = std::min(table[i][j], table[i - 2][j - 2] + 1);
    }
  }
  return table[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> closest_name(std::string_view given,
                                        const std::vector<std::string>& known) {
  std::optional<std::string> closest;
  const std::string_view letters =
      given.substr(std::min(given.find_first_not_of('-'), given.size()));
  size_t fewest = letters.size() / 3 + 1;
  for (const std::string& name : known) {
    const size_t changes = changes_between(given, name);
    if (changes > fewest || (changes == fewest && closest)) continue;
    fewest = changes;
    closest = name;
  }
  return closest;
}

std::optional<std::string> unknown_option(std::span<const std::string> words,
                                          std::span<const KnownOption> known) {
  for (size_t at = 0; at < words.size(); ++at) {
    if (words[at] == "--") return std::nullopt;
    if (!words[at].starts_with("--")) continue;
    const std::string name = words[at].substr(0, words[at].find('='));
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const KnownOption& option) { return option.name == name; });
    if (found == known.end()) return name;
    if (found->takes_value && name.size() == words[at].size()) ++at;
  }
  return std::nullopt;
}

std::string unknown_text(std::string_view what, std::string_view given,
                         const std::vector<std::string>& known) {
  std::string text = "there is no " + std::string(what) + " '" + std::string(given) + "'";
  if (const auto meant = closest_name(given, known)) text += "; did you mean '" + *meant + "'?";
  return text;
}

}  // namespace bottomless
