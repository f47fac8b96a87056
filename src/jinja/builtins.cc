#include "jinja/builtins.h"

#include <algorithm>
#include <charconv>
#include <functional>

#include "jinja/operators.h"
#include "jinja/strings.h"

namespace bottomless::text {
namespace {

constexpr int64_t kMostIndent = 100;

Error unknown(std::string_view what, std::string_view name) {
  return {Code::unsupported,
          "the " + std::string(what) + " '" + std::string(name) + "' is not supported"};
}

std::string text_at(const Given& given, size_t place, std::string_view name,
                    std::string otherwise = {}) {
  const Value* value = given.find(place, name);
  return value == nullptr || value->is_none() ? std::move(otherwise) : value->text();
}

int64_t integer_at(const Given& given, size_t place, std::string_view name, int64_t otherwise) {
  const Value* value = given.find(place, name);
  return value != nullptr && value->is_number() ? value->integer() : otherwise;
}

bool truth_at(const Given& given, size_t place, std::string_view name) {
  const Value* value = given.find(place, name);
  return value != nullptr && value->is_true();
}

Value list_of(const std::vector<std::string>& texts) {
  List list;
  for (const std::string& text : texts) list.emplace_back(text);
  return list;
}

Value pairs_of(const Mapping& mapping) {
  List pairs;
  for (const auto& [name, value] : mapping) pairs.push_back(List{name, value});
  return pairs;
}

// "a.b" of an item.
Value attribute_of(const Value& item, const std::string& path) {
  Value value = item;
  for (const std::string& name : split_text(path, ".")) {
    const Value* field = value.field(name);
    if (field == nullptr) return Undefined{name};
    value = Value(*field);
  }
  return value;
}

Result<int64_t> length_of(const Value& value) {
  if (const std::string* text = value.string()) return std::ssize(characters_of(*text));
  if (const List* list = value.list()) return std::ssize(*list);
  if (const Mapping* mapping = value.mapping()) return std::ssize(*mapping);
  if (value.is_undefined()) return int64_t{0};
  return impossible(value.kind() + " has no length");
}

// select, reject, selectattr and rejectattr.
Result<Value> chosen(const Value& of, const Given& given, bool by_attribute, bool keeps) {
  Result<List> items = items_of(of);
  if (!items.ok()) return items.error();
  const size_t test_place = by_attribute ? 1 : 0;
  Given rest;
  for (size_t i = test_place + 1; i < given.positional.size(); ++i) {
    rest.positional.push_back(given.positional[i]);
  }
  List kept;
  for (const Value& item : items.value()) {
    const Value tested = by_attribute ? attribute_of(item, text_at(given, 0, "")) : item;
    bool passes = tested.is_true();
    if (given.positional.size() > test_place) {
      Result<bool> result = apply_test(tested, given.positional[test_place].text(), rest);
      if (!result.ok()) return result.error();
      passes = result.value();
    }
    if (passes == keeps) kept.push_back(item);
  }
  return Value(std::move(kept));
}

Result<Value> mapped(const Value& of, const Given& given) {
  Result<List> items = items_of(of);
  if (!items.ok()) return items.error();
  const Value* attribute = given.find(SIZE_MAX, "attribute");
  if (attribute == nullptr && given.positional.empty()) return impossible("map needs a filter");
  Given rest;
  for (size_t i = 1; i < given.positional.size(); ++i) {
    rest.positional.push_back(given.positional[i]);
  }
  List made;
  for (const Value& item : items.value()) {
    if (attribute != nullptr) {
      made.push_back(attribute_of(item, attribute->text()));
      continue;
    }
    Result<Value> value = apply_filter(item, given.positional[0].text(), rest);
    if (!value.ok()) return value;
    made.push_back(std::move(value).value());
  }
  return Value(std::move(made));
}

Result<Value> joined(const Value& of, const Given& given) {
  Result<List> items = items_of(of);
  if (!items.ok()) return items.error();
  const Value* attribute = given.find(1, "attribute");
  std::string text;
  for (size_t i = 0; i < items.value().size(); ++i) {
    const Value& item = items.value()[i];
    if (i > 0) text += text_at(given, 0, "d");
    text += (attribute == nullptr ? item : attribute_of(item, attribute->text())).text();
  }
  return Value(std::move(text));
}

Value number_from(const Value& of, const Given& given) {
  if (of.is_number()) return of.integer();
  const std::string text = strip(of.text(), Side::both);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return integer_at(given, 0, "default", 0);
}

Result<Value> filter_items(const Value& of, std::string_view name) {
  if (name == "items") {
    if (of.is_undefined()) return Value(List{});
    if (of.mapping() == nullptr) return impossible(of.kind() + " has no items");
    return pairs_of(*of.mapping());
  }
  Result<List> items = items_of(of);
  if (!items.ok()) return items.error();
  List& list = items.value();
  if (name == "list") return Value(std::move(list));
  if (name == "reverse") {
    std::reverse(list.begin(), list.end());
    if (of.string() == nullptr) return Value(std::move(list));
    std::string text;
    for (const Value& character : list) text += character.text();
    return Value(std::move(text));
  }
  if (list.empty()) return Value(Undefined{std::string(name) + " of nothing"});
  return Value(name == "first" ? list.front() : list.back());
}

}  // namespace

const Value* Given::find(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  const auto found =
      std::find_if(named.begin(), named.end(), [&](const auto& one) { return one.first == name; });
  return found == named.end() ? nullptr : &found->second;
}

Result<Value> apply_filter(const Value& of, std::string_view name, const Given& given) {
  if (name == "trim") {
    return Value(strip(of.text(), Side::both, text_at(given, 0, "chars")));
  }
  if (name == "length" || name == "count") {
    const Result<int64_t> length = length_of(of);
    if (!length.ok()) return length.error();
    return Value(length.value());
  }
  if (name == "tojson") {
    return Value(
        to_json(of, std::clamp<int64_t>(integer_at(given, 0, "indent", -1), -1, kMostIndent)));
  }
  if (name == "default" || name == "d") {
    const bool falsy_too = truth_at(given, 1, "boolean");
    if (!of.is_undefined() && !(falsy_too && !of.is_true())) return of;
    const Value* otherwise = given.find(0, "default_value");
    return otherwise == nullptr ? Value("") : *otherwise;
  }
  if (name == "upper") return Value(uppercase(of.text()));
  if (name == "lower") return Value(lowercase(of.text()));
  if (name == "capitalize") return Value(capitalize(of.text()));
  if (name == "title") return Value(title_filter(of.text()));
  if (name == "string" || name == "safe") return Value(of.text());
  if (name == "int") return number_from(of, given);
  if (name == "replace") {
    return Value(replace_text(of.text(), text_at(given, 0, "old"), text_at(given, 1, "new")));
  }
  if (name == "indent") {
    const Value* width = given.find(0, "width");
    const bool is_text = width != nullptr && width->string() != nullptr;
    const auto spaces =
        static_cast<size_t>(std::clamp<int64_t>(integer_at(given, 0, "width", 4), 0, kMostIndent));
    return Value(indent(of.text(), is_text ? width->text() : std::string(spaces, ' '),
                        truth_at(given, 1, "first")));
  }
  if (name == "join") return joined(of, given);
  if (name == "map") return mapped(of, given);
  if (name == "select") return chosen(of, given, false, true);
  if (name == "reject") return chosen(of, given, false, false);
  if (name == "selectattr") return chosen(of, given, true, true);
  if (name == "rejectattr") return chosen(of, given, true, false);
  if (name == "first" || name == "last" || name == "list" || name == "reverse" || name == "items") {
    return filter_items(of, name);
  }
  return unknown("filter", name);
}

Result<bool> apply_test(const Value& of, std::string_view name, const Given& given) {
  const Value* with = given.find(0, "");
  if (name == "defined") return !of.is_undefined();
  if (name == "undefined") return of.is_undefined();
  if (name == "none") return of.is_none();
  if (name == "string") return of.string() != nullptr;
  if (name == "mapping") return of.mapping() != nullptr && of.name_space() == nullptr;
  if (name == "number") return of.is_number();
  if (name == "integer") return of.is_integer() && of.boolean() == nullptr;
  if (name == "float") return of.is_number() && !of.is_integer();
  if (name == "boolean") return of.boolean() != nullptr;
  if (name == "true") return of.boolean() != nullptr && *of.boolean();
  if (name == "false") return of.boolean() != nullptr && !*of.boolean();
  if (name == "iterable" || name == "sequence") {
    return of.string() != nullptr || of.list() != nullptr || of.mapping() != nullptr ||
           of.is_undefined();
  }
  if (name == "odd" && of.is_integer()) return of.integer() % 2 != 0;
  if (name == "even" && of.is_integer()) return of.integer() % 2 == 0;
  if (with != nullptr) {
    if (name == "eq" || name == "equalto") return of == *with;
    if (name == "ne") return !(of == *with);
    if (name == "in") return contains(*with, of);
    if (name == "lt") return is_less(of, *with);
    if (name == "gt") return is_less(*with, of);
    if (name == "divisibleby" && of.is_integer() && with->is_integer() && with->integer() != 0) {
      return of.integer() % with->integer() == 0;
    }
  }
  return unknown("test", name);
}

namespace {

Result<Value> call_string_method(const std::string& of, std::string_view name, const Given& given) {
  const std::string first = text_at(given, 0, "");
  if (name == "strip") return Value(strip(of, Side::both, first));
  if (name == "lstrip") return Value(strip(of, Side::left, first));
  if (name == "rstrip") return Value(strip(of, Side::right, first));
  if (name == "upper") return Value(uppercase(of));
  if (name == "lower") return Value(lowercase(of));
  if (name == "title") return Value(title_case(of));
  if (name == "capitalize") return Value(capitalize(of));
  if (name == "splitlines") return list_of(split_lines(of));
  if (name == "split") {
    const Value* separator = given.find(0, "sep");
    const bool is_given = separator != nullptr && !separator->is_none();
    if (is_given && separator->text().empty()) return impossible("split at an empty separator");
    return list_of(
        split_text(of, is_given ? separator->text() : "", integer_at(given, 1, "maxsplit", -1)));
  }
  if (name == "replace") return Value(replace_text(of, first, text_at(given, 1, "")));
  if (name == "removeprefix") return Value(of.starts_with(first) ? of.substr(first.size()) : of);
  if (name == "removesuffix") {
    return Value(of.ends_with(first) ? of.substr(0, of.size() - first.size()) : of);
  }
  if (name == "count") {
    return Value(static_cast<int64_t>(split_text(of, first).size()) - 1);
  }
  if (name == "find") {
    const size_t found = of.find(first);
    if (found == std::string::npos) return Value(int64_t{-1});
    return Value(std::ssize(characters_of(std::string_view(of).substr(0, found))));
  }
  if (name == "join" && !given.positional.empty()) {
    return joined(given.positional[0], Given{{Value(of)}, {}});
  }
  if (name == "startswith" || name == "endswith") {
    List wanted = {first};
    if (const Value* given_first = given.find(0, "prefix")) {
      if (given_first->list() != nullptr) wanted = *given_first->list();
    }
    return Value(std::any_of(wanted.begin(), wanted.end(), [&](const Value& one) {
      return name == "startswith" ? of.starts_with(one.text()) : of.ends_with(one.text());
    }));
  }
  return unknown("method of a string", name);
}

}  // namespace

Result<Value> call_method(const Value& of, std::string_view name, const Given& given) {
  if (const std::string* text = of.string()) return call_string_method(*text, name, given);
  if (const Mapping* mapping = of.mapping()) {
    if (name == "items") return pairs_of(*mapping);
    if (name == "keys" || name == "values") {
      List list;
      for (const auto& [key, value] : *mapping) list.push_back(name == "keys" ? Value(key) : value);
      return Value(std::move(list));
    }
    if (name == "get") {
      const Value* found = of.field(text_at(given, 0, "key"));
      const Value* otherwise = given.find(1, "default");
      return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value(None{});
    }
  }
  if (of.is_undefined() || of.is_none()) {
    return impossible("call '" + std::string(name) + "' of " + of.kind());
  }
  return unknown("method of " + of.kind(), name);
}

}  // namespace bottomless::text
