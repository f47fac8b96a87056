#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace bottomless {

using nlohmann::json;

Result<json> parse_strict_json(std::string_view text, const std::string& attempted) {
  constexpr int kMostDepth = 64;
  std::string wrong;
  std::vector<std::unordered_set<std::string>> names;  // of the objects that are open
  const auto look = [&](int depth, json::parse_event_t event, json& parsed) {
    // What follows something wrong is neither kept nor looked at: the ends of discarded objects are not reported.
    if (!wrong.empty()) return false;
    if (depth > kMostDepth) wrong = "it is nested deeper than " + std::to_string(kMostDepth);
    if (event == json::parse_event_t::object_start) {
      names.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      names.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      if (!names.back().insert(name).second) wrong = "the name '" + name + "' stands twice";
    }
    return wrong.empty();
  };
  try {
    json parsed = json::parse(text, look);
    if (wrong.empty()) return parsed;
  } catch (const json::exception& error) {
    if (wrong.empty()) wrong = error.what();
  }
  return Error{Code::corrupt,
               attempted + ": " + wrong + "; the file is corrupt: download or write it again"};
}

Result<std::string> write_json(const json& from, int indent, const std::string& attempted) {
  try {
    return from.dump(indent);
  } catch (const json::exception& error) {
    return Error{Code::invalid_argument, attempted + ": " + error.what() + "; use UTF-8"};
  }
}

}  // namespace bottomless
