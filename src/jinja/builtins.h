// The filters, tests and methods that chat templates use.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace bottomless::text {

// The arguments of a call.
struct Given {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // By place or by name; nullptr: not given.
  const Value* find(size_t place, std::string_view name) const;
};

// `of | name(given)`, `of is name(given)`, `of.name(given)`. Errors are Code::unsupported where there is no such thing,
// and Code::invalid_argument where it cannot be applied.
Result<Value> apply_filter(const Value& of, std::string_view name, const Given& given);
Result<bool> apply_test(const Value& of, std::string_view name, const Given& given);
Result<Value> call_method(const Value& of, std::string_view name, const Given& given);

}  // namespace bottomless::text
