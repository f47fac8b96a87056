// Python's methods of strings, for UTF-8.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::text {

enum class Side { left, right, both };
// Without `characters`: white space.
std::string strip(std::string_view text, Side side, std::string_view characters = {});

// At white space, without empty parts, if `separator` is empty. At most `most` cuts, from the left; -1: as many as there are.
std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t most = -1);
std::vector<std::string> split_lines(std::string_view text);

std::string replace_text(std::string_view text, std::string_view what, std::string_view by);
std::string uppercase(std::string_view text);
std::string lowercase(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);
// What Jinja's filter of this name does: only spaces, hyphens and opening brackets begin a word.
std::string title_filter(std::string_view text);
std::string indent(std::string_view text, std::string_view by, bool first_line_too);

}  // namespace bottomless::text
