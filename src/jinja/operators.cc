#include "jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace bottomless::text {
namespace {

// As unsigned numbers, which wrap around instead of overflowing; division rounds down, as in Python.
Value whole(const std::string& name, int64_t left, int64_t right) {
  const auto a = static_cast<uint64_t>(left);
  const auto b = static_cast<uint64_t>(right);
  if (name == "+") return static_cast<int64_t>(a + b);
  if (name == "-") return static_cast<int64_t>(a - b);
  if (name == "*") return static_cast<int64_t>(a * b);
  if (right == -1) return name == "//" ? static_cast<int64_t>(-a) : int64_t{0};
  const int64_t quotient = left / right;
  const int64_t rest = left % right;
  const bool rounds_up = rest != 0 && (rest < 0) != (right < 0);
  if (name == "//") return rounds_up ? quotient - 1 : quotient;
  return rounds_up ? rest + right : rest;
}

}  // namespace

Result<List> items_of(const Value& value) {
  if (value.is_undefined()) return List{};
  if (const List* list = value.list()) return *list;
  List items;
  if (const Mapping* mapping = value.mapping()) {
    for (const auto& [name, field] : *mapping) items.emplace_back(name);
    return items;
  }
  if (const std::string* text = value.string()) {
    for (const std::string_view character : characters_of(*text)) {
      items.emplace_back(std::string(character));
    }
    return items;
  }
  return impossible("go through the items of " + value.kind());
}

Result<bool> contains(const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    if (item.string() == nullptr) return impossible("look for " + item.kind() + " in a string");
    return text->find(*item.string()) != std::string::npos;
  }
  if (container.mapping() != nullptr) {
    return item.string() != nullptr && container.field(*item.string()) != nullptr;
  }
  const Result<List> items = items_of(container);
  if (!items.ok()) return items.error();
  return std::find(items.value().begin(), items.value().end(), item) != items.value().end();
}

Result<bool> is_less(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    return left.is_integer() && right.is_integer() ? left.integer() < right.integer()
                                                   : left.real() < right.real();
  }
  if (left.string() != nullptr && right.string() != nullptr) {
    return *left.string() < *right.string();
  }
  return impossible("compare " + left.kind() + " with " + right.kind());
}

Result<Value> calculate(const Value& left, const std::string& name, const Value& right) {
  if (name == "+" && left.string() != nullptr && right.string() != nullptr) {
    return Value(*left.string() + *right.string());
  }
  if (name == "+" && left.list() != nullptr && right.list() != nullptr) {
    List both = *left.list();
    both.insert(both.end(), right.list()->begin(), right.list()->end());
    return Value(std::move(both));
  }
  if (name == "*" && left.string() != nullptr && right.is_integer()) {
    std::string repeated;
    const int64_t times = std::max<int64_t>(right.integer(), 0);
    if (times > kMostItems || times * std::ssize(*left.string()) > kMostItems) {
      return impossible("repeat a string " + right.text() + " times");
    }
    for (int64_t i = 0; i < times; ++i) repeated += *left.string();
    return Value(std::move(repeated));
  }
  if (!left.is_number() || !right.is_number()) {
    return impossible("'" + name + "' between " + left.kind() + " and " + right.kind());
  }
  const bool divides = name == "/" || name == "//" || name == "%";
  if (divides && right.real() == 0) return impossible("divide by zero");
  if (left.is_integer() && right.is_integer() && name != "/") {
    return whole(name, left.integer(), right.integer());
  }
  const double a = left.real();
  const double b = right.real();
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "/") return Value(a / b);
  return Value(name == "//" ? std::floor(a / b) : a - b * std::floor(a / b));
}

}  // namespace bottomless::text
