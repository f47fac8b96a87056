// Cutting a text where a pattern matches, in the ways that a tokenizer.json knows.
// Thread-safety: free functions without state.
#pragma once
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "unicode/regex.h"
#include "unicode/span.h"

namespace bottomless::text {

// What becomes of the delimiters.
enum class Behaviour { removed, isolated, contiguous, merged_with_previous, merged_with_next };
std::optional<Behaviour> behaviour_named(std::string_view name);

// Whether the matches are the delimiters, or what lies between them.
enum class Delimiter { matches, between_matches };

// Appends the parts of `text`, which begins at byte `offset` of something larger, as spans of that.
Result<void> split(std::string_view text, size_t offset, const Regex& pattern, Behaviour behaviour,
                   Delimiter delimiter, std::vector<Span>& parts);

}  // namespace bottomless::text
