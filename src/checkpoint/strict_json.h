// JSON that somebody else wrote: a name that stands twice in an object is an error, and so is nesting deeper than what
// can be written again without recursion getting out of hand. For sources only; headers stay free of the library.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace bottomless {

// Errors are Code::corrupt and begin with `attempted`, which says what is read from where.
Result<nlohmann::json> parse_strict_json(std::string_view text, const std::string& attempted);

// The text, on one line (`indent` -1) or indented. Fails where a string is not UTF-8.
Result<std::string> write_json(const nlohmann::json& json, int indent,
                               const std::string& attempted);

}  // namespace bottomless
