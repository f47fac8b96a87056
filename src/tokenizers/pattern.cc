#include "tokenizers/pattern.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace bottomless::text {

Result<Regex> parse_pattern(const nlohmann::json& from) {
  if (from.contains("Regex")) return Regex::compile(from.at("Regex").get<std::string>());
  return Regex::literal(from.at("String").get<std::string>());
}

Result<void> replace_all(const Regex& pattern, std::string_view by, std::string& text,
                         std::vector<size_t>* origins) {
  std::vector<Span> matches;
  if (Result<void> found = pattern.find_all(text, matches); !found.ok()) return found;
  if (matches.empty()) return {};
  std::string replaced;
  std::vector<size_t> from;
  size_t done = 0;
  const auto keep = [&](size_t end) {
    replaced.append(text, done, end - done);
    if (origins == nullptr) return;
    const auto begin = origins->begin();
    from.insert(from.end(), begin + static_cast<std::ptrdiff_t>(done),
                begin + static_cast<std::ptrdiff_t>(end));
  };
  for (const Span& match : matches) {
    keep(match.begin);
    replaced.append(by);
    if (origins != nullptr) from.insert(from.end(), by.size(), (*origins)[match.begin]);
    done = match.end;
  }
  keep(text.size());
  text = std::move(replaced);
  if (origins != nullptr) *origins = std::move(from);
  return {};
}

}  // namespace bottomless::text
