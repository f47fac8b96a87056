// Renders a parsed template.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "jinja/syntax.h"
#include "unicode/span.h"

namespace bottomless::text {

struct Rendered {
  std::string text;
  std::vector<Span> generated;  // what stands in {% generation %} blocks, in bytes
};

// `variables` is what the template may name; `now` what strftime_now writes, which is undefined without it. Errors name
// the line; what the template itself raises is Code::invalid_argument.
Result<Rendered> render_jinja(const Block& block, const Mapping& variables,
                              const std::optional<std::tm>& now);

}  // namespace bottomless::text
