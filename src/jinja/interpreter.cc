#include "jinja/interpreter.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "jinja/builtins.h"
#include "jinja/operators.h"

namespace bottomless::text {
namespace {

constexpr int kMostMacroDepth = 32;
constexpr int kMostValueDepth = 32;  // of lists and mappings inside each other
constexpr int64_t kMostSteps = 4'000'000;
constexpr size_t kMostText = size_t{1} << 26;  // a template that writes more runs away

// False if the value could grow without end in a loop: a namespace is the only thing that outlives an iteration.
bool may_be_kept(const Value& value, int depth = 0) {
  if (depth > kMostValueDepth || value.name_space() != nullptr) return false;
  const auto fits = [&](const Value& inner) { return may_be_kept(inner, depth + 1); };
  if (const List* list = value.list()) return std::all_of(list->begin(), list->end(), fits);
  const Mapping* mapping = value.mapping();
  return mapping == nullptr || std::all_of(mapping->begin(), mapping->end(),
                                           [&](const auto& field) { return fits(field.second); });
}

class Interpreter {
 public:
  Interpreter(const Mapping& variables, const std::optional<std::tm>& now) : now_(now) {
    scopes_.emplace_back();
    for (const auto& [name, value] : variables) scopes_.back()[name] = value;
  }

  Result<Rendered> run(const Block& block) {
    execute(block);
    if (error_) return *error_;
    return std::move(rendered_);
  }

 private:
  enum class Flow { goes_on, breaks, continues };
  using Scope = std::map<std::string, Value, std::less<>>;

  // The first failure counts; everything that is running then comes to an end.
  Value fail(int line, Code code, const std::string& what) {
    if (!error_) error_ = Error{code, "line " + std::to_string(line) + ": " + what};
    return {};
  }

  template <class T>
  Value given(int line, const Result<T>& result) {
    if (result.ok()) return Value(result.value());
    return fail(line, result.error().code, result.error().message);
  }

  Flow execute(const Block& block) {
    for (const Statement& statement : block) {
      const Flow flow = execute(statement);
      if (error_) return Flow::breaks;
      if (flow != Flow::goes_on) return flow;
    }
    return Flow::goes_on;
  }

  Flow execute(const Statement& statement) {
    using Kind = Statement::Kind;
    switch (statement.kind) {
      case Kind::text:
        write(statement.line, statement.text);
        break;
      case Kind::output:
        write(statement.line, evaluate(*statement.expression).text());
        break;
      case Kind::condition:
        return execute(evaluate(*statement.expression).is_true() ? statement.body
                                                                 : statement.otherwise);
      case Kind::loop:
        return loop(statement);
      case Kind::assignment:
        assign(statement, evaluate(*statement.expression));
        break;
      case Kind::captured:
        assign(statement, capture(statement.body));
        break;
      case Kind::generation: {
        const size_t begin = rendered_.text.size();
        const Flow flow = execute(statement.body);
        if (output_ == &rendered_.text) rendered_.generated.push_back({begin, output_->size()});
        return flow;
      }
      case Kind::definition:
        scopes_.back()[statement.macro->name] = statement.macro;
        break;
      case Kind::break_loop:
        return Flow::breaks;
      case Kind::continue_loop:
        return Flow::continues;
    }
    return Flow::goes_on;
  }

  void write(int line, std::string_view text) {
    if (output_->size() + text.size() > kMostText) {
      fail(line, Code::invalid_argument, "the text grows beyond 64 MiB");
      return;
    }
    output_->append(text);
  }

  std::string capture(const Block& block) {
    std::string captured;
    std::string* outer = std::exchange(output_, &captured);
    execute(block);
    output_ = outer;
    return captured;
  }

  void assign(const Statement& statement, Value value) {
    if (statement.names.size() == 1) {
      scopes_.back()[statement.names[0]] = std::move(value);
      return;
    }
    Namespace* space = look_up(statement.names[0]).name_space();
    if (space == nullptr) {
      fail(statement.line, Code::invalid_argument,
           "set a field of '" + statement.names[0] + "', which is no namespace");
      return;
    }
    if (!may_be_kept(value)) {
      fail(statement.line, Code::unsupported,
           "a namespace cannot hold another one, or lists inside each other without end");
      return;
    }
    for (auto& [name, field] : space->fields) {
      if (name != statement.names[1]) continue;
      field = std::move(value);
      return;
    }
    space->fields.emplace_back(statement.names[1], std::move(value));
  }

  bool bind(const Statement& statement, const Value& item, Scope& scope) {
    if (statement.names.size() == 1) {
      scope[statement.names[0]] = item;
      return true;
    }
    const List* parts = item.list();
    if (parts == nullptr || parts->size() != statement.names.size()) {
      fail(statement.line, Code::invalid_argument,
           "unpack " + item.kind() + " into " + std::to_string(statement.names.size()) + " names");
      return false;
    }
    for (size_t i = 0; i < parts->size(); ++i) scope[statement.names[i]] = (*parts)[i];
    return true;
  }

  // The items that a loop really goes through.
  List items_for(const Statement& statement) {
    const Result<List> items = items_of(evaluate(*statement.expression));
    if (!items.ok()) {
      fail(statement.line, items.error().code, items.error().message);
      return {};
    }
    if (statement.filter == nullptr) return items.value();
    List kept;
    for (const Value& item : items.value()) {
      scopes_.emplace_back();
      if (bind(statement, item, scopes_.back()) && evaluate(*statement.filter).is_true()) {
        kept.push_back(item);
      }
      scopes_.pop_back();
    }
    return kept;
  }

  static Value loop_state(const List& items, size_t i) {
    const auto index = static_cast<int64_t>(i);
    const int64_t length = std::ssize(items);
    return Mapping{
        {"index", index + 1},
        {"index0", index},
        {"revindex", length - index},
        {"revindex0", length - index - 1},
        {"first", i == 0},
        {"last", i + 1 == items.size()},
        {"length", length},
        {"previtem", i == 0 ? Value(Undefined{"loop.previtem"}) : items[i - 1]},
        {"nextitem", i + 1 == items.size() ? Value(Undefined{"loop.nextitem"}) : items[i + 1]}};
  }

  Flow loop(const Statement& statement) {
    const List items = items_for(statement);
    if (items.empty() && !error_) return execute(statement.otherwise);
    for (size_t i = 0; i < items.size() && !error_; ++i) {
      scopes_.emplace_back();
      Flow flow = Flow::breaks;
      if (bind(statement, items[i], scopes_.back())) {
        scopes_.back()["loop"] = loop_state(items, i);
        flow = execute(statement.body);
      }
      scopes_.pop_back();
      if (flow == Flow::breaks) break;
    }
    return Flow::goes_on;
  }

  Value look_up(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > 0;) {
      const auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return found->second;
    }
    return Undefined{name};
  }

  Value evaluate(const Expression& expression) {
    if (error_) return {};
    if (++steps_ > kMostSteps) {
      return fail(
          expression.line, Code::invalid_argument,
          "the template does not come to an end after " + std::to_string(kMostSteps) + " steps");
    }
    Value value = compute(expression);
    const bool is_too_long = (value.string() != nullptr && value.string()->size() > kMostText) ||
                             (value.list() != nullptr && std::ssize(*value.list()) > kMostItems);
    if (is_too_long) {
      return fail(expression.line, Code::invalid_argument, value.kind() + " grows too long");
    }
    return value;
  }

  Value compute(const Expression& expression) {
    using Kind = Expression::Kind;
    const auto part = [&](size_t i) { return evaluate(*expression.parts[i]); };
    switch (expression.kind) {
      case Kind::literal:
        return expression.value;
      case Kind::name:
        return look_up(expression.name);
      case Kind::attribute:
        return field(expression.line, part(0), expression.name);
      case Kind::subscript:
        return subscript(expression, part(0), part(1));
      case Kind::slice:
        return slice(expression);
      case Kind::call:
        return call(expression);
      case Kind::filter: {
        const Value of = part(0);
        const Given arguments = evaluate(expression.arguments);
        return given(expression.line, apply_filter(of, expression.name, arguments));
      }
      case Kind::test:
        return test(expression);
      case Kind::unary:
        return unary(expression, part(0));
      case Kind::binary:
        return binary(expression);
      case Kind::conditional:
        if (part(1).is_true()) return part(0);
        return expression.parts[2] == nullptr ? Value(Undefined{"else"}) : part(2);
      case Kind::list: {
        List list;
        for (size_t i = 0; i < expression.parts.size(); ++i) list.push_back(part(i));
        return list;
      }
      case Kind::mapping: {
        Mapping mapping;
        for (size_t i = 0; i < expression.parts.size(); i += 2) {
          mapping.emplace_back(part(i).text(), part(i + 1));
        }
        return mapping;
      }
    }
    return {};
  }

  Given evaluate(const Arguments& arguments) {
    Given made;
    for (const auto& one : arguments.positional) made.positional.push_back(evaluate(*one));
    for (const auto& [name, one] : arguments.named) made.named.emplace_back(name, evaluate(*one));
    return made;
  }

  Value field(int line, const Value& of, const std::string& name) {
    if (of.is_undefined()) {
      return fail(line, Code::invalid_argument, "take '" + name + "' of " + of.kind());
    }
    const Value* found = of.field(name);
    return found == nullptr ? Value(Undefined{name}) : *found;
  }

  Value subscript(const Expression& expression, const Value& of, const Value& index) {
    if (index.string() != nullptr) return field(expression.line, of, *index.string());
    if (of.is_undefined()) return field(expression.line, of, index.text());
    if (!index.is_integer()) {
      return fail(expression.line, Code::invalid_argument, "take an item by " + index.kind());
    }
    if (of.list() == nullptr && of.string() == nullptr) return Undefined{index.text()};
    const List items = items_of(of).value();
    const int64_t size = std::ssize(items);
    const int64_t place = index.integer() < 0 ? index.integer() + size : index.integer();
    if (place < 0 || place >= size) return Undefined{"item " + index.text()};
    return Value(items[place]);
  }

  Value slice(const Expression& expression) {
    const Value of = evaluate(*expression.parts[0]);
    if (of.list() == nullptr && of.string() == nullptr) {
      return fail(expression.line, Code::invalid_argument, "take a slice of " + of.kind());
    }
    const List items = items_of(of).value();
    const int64_t size = std::ssize(items);
    const auto bound = [&](size_t i, int64_t otherwise) {
      const Value value = expression.parts[i] == nullptr ? None{} : evaluate(*expression.parts[i]);
      return value.is_integer() ? value.integer() : otherwise;
    };
    const int64_t step = bound(3, 1);
    if (step == 0) return fail(expression.line, Code::invalid_argument, "a slice with step 0");
    const auto place = [&](int64_t at) {
      const int64_t from_start = at < 0 ? std::max<int64_t>(at, -size - 1) + size : at;
      return std::clamp<int64_t>(from_start, step < 0 ? -1 : 0, step < 0 ? size - 1 : size);
    };
    constexpr int64_t kMissing = INT64_MIN;
    const int64_t start_given = bound(1, kMissing);
    const int64_t stop_given = bound(2, kMissing);
    const int64_t start = start_given == kMissing ? (step < 0 ? size - 1 : 0) : place(start_given);
    const int64_t stop = stop_given == kMissing ? (step < 0 ? -1 : size) : place(stop_given);
    List taken;
    for (int64_t i = start; step < 0 ? i > stop : i < stop;
         i += std::clamp(step, -size - 1, size + 1)) {
      taken.push_back(items[i]);
    }
    if (of.list() != nullptr) return taken;
    std::string text;
    for (const Value& character : taken) text += character.text();
    return text;
  }

  bool is_function(const std::string& name) const {
    return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
           (name == "strftime_now" && now_);
  }

  Value call(const Expression& expression) {
    const Expression& callee = *expression.parts[0];
    const int line = expression.line;
    if (callee.kind == Expression::Kind::attribute) {
      const Value of = evaluate(*callee.parts[0]);
      const Given arguments = evaluate(expression.arguments);
      if (error_) return {};
      return given(line, call_method(of, callee.name, arguments));
    }
    const Value function = evaluate(callee);
    const Given arguments = evaluate(expression.arguments);
    if (error_) return {};
    if (const auto macro = function.macro()) return call_macro(line, *macro, arguments);
    if (function.is_undefined() && is_function(callee.name)) {
      return call_function(line, callee.name, arguments);
    }
    return fail(line, Code::unsupported, "call " + function.kind());
  }

  Value call_function(int line, const std::string& name, const Given& arguments) {
    if (name == "raise_exception") {
      const Value* message = arguments.find(0, "message");
      return fail(line, Code::invalid_argument,
                  "the template refuses this: " + (message == nullptr ? "" : message->text()));
    }
    if (name == "strftime_now") {
      const Value* format = arguments.find(0, "format");
      std::array<char, 256> text{};
      if (format == nullptr ||
          std::strftime(text.data(), text.size(), format->text().c_str(), &*now_) == 0) {
        return fail(line, Code::invalid_argument, "strftime_now needs a format");
      }
      return std::string(text.data());
    }
    if (name == "range") return range(line, arguments);
    Mapping fields = arguments.named;
    if (name == "dict") return fields;
    if (!may_be_kept(fields)) return fail(line, Code::unsupported, "a namespace in another one");
    auto space = std::make_shared<Namespace>();
    space->fields = std::move(fields);
    return space;
  }

  Value range(int line, const Given& arguments) {
    const auto& given = arguments.positional;
    const bool are_integers =
        std::all_of(given.begin(), given.end(), [](const Value& one) { return one.is_integer(); });
    if (given.empty() || given.size() > 3 || !are_integers) {
      return fail(line, Code::invalid_argument, "range needs one to three integers");
    }
    const int64_t start = given.size() > 1 ? given[0].integer() : 0;
    const int64_t stop = given.size() > 1 ? given[1].integer() : given[0].integer();
    const int64_t step = given.size() > 2 ? given[2].integer() : 1;
    List numbers;
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
      if (step == 0 || std::ssize(numbers) == kMostItems) {
        return fail(line, Code::invalid_argument, "range with so many numbers");
      }
      numbers.emplace_back(i);
    }
    return numbers;
  }

  Value call_macro(int line, const Macro& macro, const Given& arguments) {
    if (++macro_depth_ > kMostMacroDepth) {
      --macro_depth_;
      return fail(line, Code::invalid_argument, "macros call each other too deeply");
    }
    std::vector<Scope> outer = std::exchange(scopes_, {scopes_.front(), Scope{}});
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      const Value* value = arguments.find(i, name);
      scopes_.back()[name] = value != nullptr       ? *value
                             : otherwise == nullptr ? Value(Undefined{name})
                                                    : evaluate(*otherwise);
    }
    Value text = capture(macro.body);
    scopes_ = std::move(outer);
    --macro_depth_;
    return text;
  }

  Value test(const Expression& expression) {
    const Expression& tested = *expression.parts[0];
    const Given arguments = evaluate(expression.arguments);
    const bool is_defined_function =
        tested.kind == Expression::Kind::name && is_function(tested.name);
    if (is_defined_function && expression.name == "defined") return true;
    return given(expression.line, apply_test(evaluate(tested), expression.name, arguments));
  }

  Value unary(const Expression& expression, const Value& of) {
    if (expression.name == "not") return !of.is_true();
    if (!of.is_number()) {
      return fail(expression.line, Code::invalid_argument, "put a sign before " + of.kind());
    }
    if (expression.name == "+") return of;
    return of.is_integer() ? Value(-of.integer()) : Value(-of.real());
  }

  Value binary(const Expression& expression) {
    const std::string& name = expression.name;
    Value left = evaluate(*expression.parts[0]);
    if (name == "and" && !left.is_true()) return left;
    if (name == "or" && left.is_true()) return left;
    Value right = evaluate(*expression.parts[1]);
    if (error_ || name == "and" || name == "or") return right;
    const int line = expression.line;
    if (name == "==") return left == right;
    if (name == "!=") return !(left == right);
    if (name == "in") return given(line, contains(right, left));
    if (name == "not in") return !given(line, contains(right, left)).is_true();
    if (name == "<") return given(line, is_less(left, right));
    if (name == ">") return given(line, is_less(right, left));
    if (name == "<=") return !given(line, is_less(right, left)).is_true();
    if (name == ">=") return !given(line, is_less(left, right)).is_true();
    if (name == "~") return left.text() + right.text();
    return given(line, calculate(left, name, right));
  }

  const std::optional<std::tm>& now_;
  std::vector<Scope> scopes_;
  Rendered rendered_;
  std::string* output_ = &rendered_.text;
  int macro_depth_ = 0;
  int64_t steps_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<Rendered> render_jinja(const Block& block, const Mapping& variables,
                              const std::optional<std::tm>& now) {
  return Interpreter(variables, now).run(block);
}

}  // namespace bottomless::text
