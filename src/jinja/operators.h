// The operators of templates on values, as Python has them.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string>
#include <utility>

#include "jinja/value.h"

namespace bottomless::text {

inline constexpr int64_t kMostItems = 1 << 20;  // of range() and of a repeated string

inline Error impossible(std::string what) { return {Code::invalid_argument, std::move(what)}; }

// What a loop goes through: the items of a list, the names of a mapping, the characters of a string.
Result<List> items_of(const Value& value);

// `left in right`, `left < right`, and + - * / // %. Errors are Code::invalid_argument.
Result<bool> contains(const Value& container, const Value& item);
Result<bool> is_less(const Value& left, const Value& right);
Result<Value> calculate(const Value& left, const std::string& name, const Value& right);

}  // namespace bottomless::text
