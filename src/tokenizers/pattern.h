// The {"String": ...} or {"Regex": ...} of a tokenizer.json, and replacing what it matches.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/regex.h"

namespace bottomless::text {

// Throws json::exception where it is of another shape.
Result<Regex> parse_pattern(const nlohmann::json& from);

// `origins`, if any, as in Normalizer::trace.
Result<void> replace_all(const Regex& pattern, std::string_view by, std::string& text,
                         std::vector<size_t>* origins = nullptr);

}  // namespace bottomless::text
