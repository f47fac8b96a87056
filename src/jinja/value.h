// The values of a template: those of Python that chat templates use.
// Thread-safety: one thread at a time; copies of lists and mappings share what they hold.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace bottomless::text {

class Value;
struct Macro;
using List = std::vector<Value>;
using Mapping = std::vector<std::pair<std::string, Value>>;  // in the order of insertion

// A mapping whose fields a template may set: namespace() makes one.
struct Namespace {
  Mapping fields;
};

struct Undefined {
  std::string name;  // of what is not there
};
struct None {};

class Value {
 public:
  Value() : state_(Undefined{}) {}
  Value(Undefined undefined) : state_(std::move(undefined)) {}                         // NOLINT
  Value(None none) : state_(none) {}                                                   // NOLINT
  Value(bool value) : state_(value) {}                                                 // NOLINT
  Value(int64_t value) : state_(value) {}                                              // NOLINT
  Value(double value) : state_(value) {}                                               // NOLINT
  Value(std::string value) : state_(std::move(value)) {}                               // NOLINT
  Value(const char* value) : state_(std::string(value)) {}                             // NOLINT
  Value(std::shared_ptr<Namespace> value) : state_(std::move(value)) {}                // NOLINT
  Value(std::shared_ptr<const Macro> value) : state_(std::move(value)) {}              // NOLINT
  Value(List value) : state_(std::make_shared<const List>(std::move(value))) {}        // NOLINT
  Value(Mapping value) : state_(std::make_shared<const Mapping>(std::move(value))) {}  // NOLINT

  bool is_undefined() const { return std::holds_alternative<Undefined>(state_); }
  bool is_none() const { return std::holds_alternative<None>(state_); }
  // nullptr: it is something else. A truth value counts as an integer, as in Python.
  const Undefined* undefined() const { return std::get_if<Undefined>(&state_); }
  const bool* boolean() const { return std::get_if<bool>(&state_); }
  const std::string* string() const { return std::get_if<std::string>(&state_); }
  const List* list() const;
  const Mapping* mapping() const;  // of a namespace, too
  Namespace* name_space() const;
  std::shared_ptr<const Macro> macro() const;
  bool is_integer() const { return std::holds_alternative<int64_t>(state_) || boolean(); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(state_); }
  int64_t integer() const;  // of a number
  double real() const;      // of a number

  bool is_true() const;
  const Value* field(std::string_view name) const;  // of a mapping; nullptr: there is none

  // As str() and repr() write it.
  std::string text() const;
  std::string representation() const;
  std::string kind() const;  // for messages

  friend bool operator==(const Value& left, const Value& right);

 private:
  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<const List>,
               std::shared_ptr<const Mapping>, std::shared_ptr<Namespace>,
               std::shared_ptr<const Macro>>
      state_;
};

// As json.dumps(value, ensure_ascii=False) writes it; indented if `indent` >= 0.
std::string to_json(const Value& value, int64_t indent = -1);

// Characters, not bytes: as Python counts them. `text` is UTF-8.
std::vector<std::string_view> characters_of(std::string_view text);

}  // namespace bottomless::text
