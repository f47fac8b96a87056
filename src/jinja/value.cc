#include "jinja/value.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  std::string text(digits.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  const char quote =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string written(1, quote);
  for (const char byte : text) {
    if (byte == quote || byte == '\\') written += '\\';
    if (byte == '\n') {
      written += "\\n";
    } else if (byte == '\t') {
      written += "\\t";
    } else if (byte == '\r') {
      written += "\\r";
    } else {
      written += byte;
    }
  }
  return written + quote;
}

std::string json_string(const std::string& text) {
  std::string written = "\"";
  for (const char byte : text) {
    switch (byte) {
      case '"':
        written += "\\\"";
        break;
      case '\\':
        written += "\\\\";
        break;
      case '\n':
        written += "\\n";
        break;
      case '\r':
        written += "\\r";
        break;
      case '\t':
        written += "\\t";
        break;
      case '\b':
        written += "\\b";
        break;
      case '\f':
        written += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(byte) < 0x20) {
          std::array<char, 8> escaped;
          std::snprintf(escaped.data(), escaped.size(), "\\u%04x", byte);
          written += escaped.data();
        } else {
          written += byte;
        }
    }
  }
  return written + '"';
}

std::string json_at(const Value& value, int64_t indent, int64_t depth) {
  const auto line = [&](int64_t at) {
    std::string begun;
    if (indent >= 0) begun.append("\n").append(static_cast<size_t>(indent * at), ' ');
    return begun;
  };
  const std::string separator = indent < 0 ? ", " : ",";
  std::string inner;
  if (const List* list = value.list()) {
    for (const Value& one : *list) {
      inner += (inner.empty() ? "" : separator) + line(depth + 1) + json_at(one, indent, depth + 1);
    }
    return list->empty() ? "[]" : "[" + inner + line(depth) + "]";
  }
  if (const Mapping* mapping = value.mapping()) {
    for (const auto& [name, one] : *mapping) {
      inner += (inner.empty() ? "" : separator) + line(depth + 1) + json_string(name) + ": " +
               json_at(one, indent, depth + 1);
    }
    return mapping->empty() ? "{}" : "{" + inner + line(depth) + "}";
  }
  if (const std::string* text = value.string()) return json_string(*text);
  if (const bool* truth = value.boolean()) return *truth ? "true" : "false";
  return value.is_number() ? value.text() : "null";
}

}  // namespace

const List* Value::list() const {
  const auto* list = std::get_if<std::shared_ptr<const List>>(&state_);
  return list == nullptr ? nullptr : list->get();
}

const Mapping* Value::mapping() const {
  if (const Namespace* space = name_space()) return &space->fields;
  const auto* mapping = std::get_if<std::shared_ptr<const Mapping>>(&state_);
  return mapping == nullptr ? nullptr : mapping->get();
}

Namespace* Value::name_space() const {
  const auto* space = std::get_if<std::shared_ptr<Namespace>>(&state_);
  return space == nullptr ? nullptr : space->get();
}

std::shared_ptr<const Macro> Value::macro() const {
  const auto* macro = std::get_if<std::shared_ptr<const Macro>>(&state_);
  return macro == nullptr ? nullptr : *macro;
}

int64_t Value::integer() const {
  if (const bool* truth = boolean()) return *truth ? 1 : 0;
  if (const auto* real = std::get_if<double>(&state_)) return static_cast<int64_t>(*real);
  return std::get<int64_t>(state_);
}

double Value::real() const {
  const auto* real = std::get_if<double>(&state_);
  return real == nullptr ? static_cast<double>(integer()) : *real;
}

bool Value::is_true() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return real() != 0;
  if (const std::string* text = string()) return !text->empty();
  if (const List* values = list()) return !values->empty();
  if (name_space() != nullptr) return true;
  if (const Mapping* fields = mapping()) return !fields->empty();
  return true;
}

const Value* Value::field(std::string_view name) const {
  const Mapping* fields = mapping();
  if (fields == nullptr) return nullptr;
  for (const auto& [known, value] : *fields) {
    if (known == name) return &value;
  }
  return nullptr;
}

std::string Value::text() const {
  const std::string* own = string();
  return own != nullptr ? *own : is_undefined() ? std::string() : representation();
}

std::string Value::representation() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (const bool* truth = boolean()) return *truth ? "True" : "False";
  if (is_integer()) return std::to_string(integer());
  if (is_number()) return real_text(real());
  if (const std::string* own = string()) return quoted(*own);
  std::string inner;
  if (const List* values = list()) {
    for (const Value& value : *values) {
      inner.append(inner.empty() ? "" : ", ").append(value.representation());
    }
    return "[" + inner + "]";
  }
  if (const Mapping* fields = mapping()) {
    for (const auto& [name, value] : *fields) {
      inner.append(inner.empty() ? "" : ", ").append(quoted(name) + ": " + value.representation());
    }
    return "{" + inner + "}";
  }
  return "<macro>";
}

std::string Value::kind() const {
  if (const Undefined* missing = undefined()) return "'" + missing->name + "', which is undefined";
  if (is_none()) return "none";
  if (boolean() != nullptr) return "a truth value";
  if (is_number()) return "a number";
  if (string() != nullptr) return "a string";
  if (list() != nullptr) return "a list";
  return mapping() != nullptr ? "a mapping" : "a macro";
}

bool operator==(const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) {
    return left.is_integer() && right.is_integer() ? left.integer() == right.integer()
                                                   : left.real() == right.real();
  }
  if (left.string() != nullptr && right.string() != nullptr) {
    return *left.string() == *right.string();
  }
  if (left.list() != nullptr && right.list() != nullptr) return *left.list() == *right.list();
  const Mapping* fields = left.mapping();
  if (fields != nullptr && right.mapping() != nullptr) {
    if (fields->size() != right.mapping()->size()) return false;
    for (const auto& [name, value] : *fields) {
      const Value* other = right.field(name);
      if (other == nullptr || !(value == *other)) return false;
    }
    return true;
  }
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

std::string to_json(const Value& value, int64_t indent) { return json_at(value, indent, 0); }

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    const size_t bytes = bytes_of_character(text[0]);
    characters.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return characters;
}

}  // namespace bottomless::text
