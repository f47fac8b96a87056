#include "jinja/expressions.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace bottomless::text {
namespace {

using Kind = Expression::Kind;

constexpr int kMostDepth = 100;   // of brackets and blocks inside each other
constexpr int kMostHeight = 250;  // of a chain such as a + b + c

ExpressionPointer literal(int line, Value value) {
  auto made = std::make_unique<Expression>();
  made->kind = Kind::literal;
  made->line = line;
  made->value = std::move(value);
  return made;
}

}  // namespace

template <class... Parts>
std::unique_ptr<Expression> ExpressionParser::make(Kind kind, int line, std::string name,
                                                   Parts... parts) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->name = std::move(name);
  (made->parts.push_back(std::move(parts)), ...);
  for (const ExpressionPointer& part : made->parts) {
    if (part != nullptr) made->height = std::max(made->height, part->height + 1);
  }
  if (made->height > kMostHeight) {
    fail(Code::unsupported, "an expression of more than " + std::to_string(kMostHeight) +
                                " steps in a row is not supported");
  }
  return made;
}

Token ExpressionParser::take() {
  Token token = tokens_[at_];
  if (token.kind != Token::Kind::end) ++at_;
  return token;
}

bool ExpressionParser::is_symbol(std::string_view text) const {
  return here().kind == Token::Kind::symbol && here().text == text;
}

bool ExpressionParser::is_name(std::string_view text) const {
  return here().kind == Token::Kind::name && here().text == text;
}

bool ExpressionParser::take_symbol(std::string_view text) {
  const bool found = is_symbol(text);
  if (found) take();
  return found;
}

bool ExpressionParser::take_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) take();
  return found;
}

void ExpressionParser::expect_symbol(std::string_view text) {
  if (!take_symbol(text)) fail(Code::corrupt, "'" + std::string(text) + "' is expected");
}

void ExpressionParser::expect_name(std::string_view text) {
  if (!take_name(text)) fail(Code::corrupt, "'" + std::string(text) + "' is expected");
}

std::string ExpressionParser::expect_any_name() {
  if (here().kind != Token::Kind::name) fail(Code::corrupt, "a name is expected");
  return take().text;
}

void ExpressionParser::expect(Token::Kind kind, std::string_view what) {
  if (here().kind != kind) fail(Code::corrupt, std::string(what) + " is expected");
  take();
}

void ExpressionParser::fail(Code code, const std::string& what) {
  if (!error_) {
    std::string found = here().kind == Token::Kind::end ? " before the end" : "";
    if (!here().text.empty()) found = " at '" + here().text + "'";
    error_ = Error{code, "line " + std::to_string(here().line) + ": " + what + found};
  }
  at_ = tokens_.size() - 1;
}

bool ExpressionParser::enter() {
  if (++depth_ > kMostDepth) {
    fail(Code::unsupported,
         "nesting deeper than " + std::to_string(kMostDepth) + " is not supported");
  }
  return depth_ <= kMostDepth;
}

ExpressionPointer ExpressionParser::parse_expression_list() {
  const int line = here().line;
  ExpressionPointer first = parse_expression();
  if (!is_symbol(",")) return first;
  auto list = make(Kind::list, line, "", std::move(first));
  while (take_symbol(",")) list->parts.push_back(parse_expression());
  return list;
}

ExpressionPointer ExpressionParser::parse_expression() {
  const int line = here().line;
  ExpressionPointer value;
  if (enter()) value = parse_or();
  while (take_name("if")) {
    ExpressionPointer condition = parse_or();
    ExpressionPointer otherwise = take_name("else") ? parse_expression() : nullptr;
    value = make(Kind::conditional, line, "", std::move(value), std::move(condition),
                 std::move(otherwise));
  }
  leave();
  return value;
}

ExpressionPointer ExpressionParser::parse_or() {
  const int line = here().line;
  ExpressionPointer left = parse_and();
  while (take_name("or")) left = make(Kind::binary, line, "or", std::move(left), parse_and());
  return left;
}

ExpressionPointer ExpressionParser::parse_and() {
  const int line = here().line;
  ExpressionPointer left = parse_not();
  while (take_name("and")) left = make(Kind::binary, line, "and", std::move(left), parse_not());
  return left;
}

ExpressionPointer ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const int line = take().line;
  ExpressionPointer of;
  if (enter()) of = parse_not();
  leave();
  return make(Kind::unary, line, "not", std::move(of));
}

ExpressionPointer ExpressionParser::parse_comparison() {
  const int line = here().line;
  ExpressionPointer left = parse_binary(0);
  constexpr auto kComparisons = std::to_array<std::string_view>({"==", "!=", "<=", ">=", "<", ">"});
  int comparisons = 0;
  while (!error_) {
    std::string name;
    for (const std::string_view symbol : kComparisons) {
      if (name.empty() && take_symbol(symbol)) name = symbol;
    }
    if (name.empty() && take_name("in")) name = "in";
    if (name.empty() && is_name("not") && ahead().kind == Token::Kind::name &&
        ahead().text == "in") {
      take();
      take();
      name = "not in";
    }
    if (name.empty()) break;
    if (++comparisons > 1) fail(Code::unsupported, "a chain of comparisons is not supported");
    left = make(Kind::binary, line, name, std::move(left), parse_binary(0));
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_binary(size_t level) {
  // From the loosest to the tightest.
  static constexpr std::array<std::array<std::string_view, 4>, 3> kLevels = {
      {{"+", "-", "", ""}, {"~", "", "", ""}, {"*", "//", "/", "%"}}};
  if (level == kLevels.size()) return parse_unary();
  const int line = here().line;
  ExpressionPointer left = parse_binary(level + 1);
  while (!error_) {
    std::string name;
    for (const std::string_view symbol : kLevels[level]) {
      if (name.empty() && !symbol.empty() && take_symbol(symbol)) name = symbol;
    }
    if (name.empty()) break;
    left = make(Kind::binary, line, name, std::move(left), parse_binary(level + 1));
  }
  return left;
}

ExpressionPointer ExpressionParser::parse_unary() {
  if (!is_symbol("-") && !is_symbol("+")) return parse_filters(parse_postfix(parse_primary()));
  const Token sign = take();
  ExpressionPointer of;
  if (enter()) of = parse_unary();
  leave();
  return make(Kind::unary, sign.line, sign.text, std::move(of));
}

ExpressionPointer ExpressionParser::parse_primary() {
  const Token token = here();
  if (token.kind == Token::Kind::string) {
    std::string text;
    while (here().kind == Token::Kind::string) text += take().text;
    return literal(token.line, std::move(text));
  }
  if (token.kind == Token::Kind::number) {
    take();
    const char* end = token.text.data() + token.text.size();
    if (token.text.find_first_of(".eE") != std::string::npos) {
      double value = 0;
      std::from_chars(token.text.data(), end, value);
      return literal(token.line, value);
    }
    int64_t value = 0;
    if (std::from_chars(token.text.data(), end, value).ec != std::errc()) {
      fail(Code::unsupported, "the number " + token.text + " is too large");
    }
    return literal(token.line, value);
  }
  if (token.kind == Token::Kind::name) {
    take();
    if (token.text == "true" || token.text == "True") return literal(token.line, true);
    if (token.text == "false" || token.text == "False") return literal(token.line, false);
    if (token.text == "none" || token.text == "None") return literal(token.line, None{});
    return make(Kind::name, token.line, token.text);
  }
  ExpressionPointer bracketed;
  if (enter()) bracketed = is_symbol("{") ? parse_mapping() : parse_bracketed();
  leave();
  return bracketed;
}

ExpressionPointer ExpressionParser::parse_bracketed() {
  const Token open = here();
  const bool is_round = take_symbol("(");
  if (!is_round && !take_symbol("[")) {
    fail(Code::corrupt, "an expression is expected");
    return nullptr;
  }
  const std::string_view close = is_round ? ")" : "]";
  auto list = make(Kind::list, open.line, "");
  bool has_comma = false;
  while (!error_ && !is_symbol(close)) {
    list->parts.push_back(parse_expression());
    if (!take_symbol(",")) break;
    has_comma = true;
  }
  expect_symbol(close);
  if (is_round && !has_comma && list->parts.size() == 1) return std::move(list->parts[0]);
  return list;
}

ExpressionPointer ExpressionParser::parse_mapping() {
  auto mapping = make(Kind::mapping, here().line, "");
  expect_symbol("{");
  while (!error_ && !is_symbol("}")) {
    mapping->parts.push_back(parse_expression());
    expect_symbol(":");
    mapping->parts.push_back(parse_expression());
    if (!take_symbol(",")) break;
  }
  expect_symbol("}");
  return mapping;
}

ExpressionPointer ExpressionParser::parse_postfix(ExpressionPointer of) {
  while (!error_) {
    const int line = here().line;
    if (take_symbol(".")) {
      of = make(Kind::attribute, line, expect_any_name(), std::move(of));
    } else if (take_symbol("[")) {
      of = parse_subscript(std::move(of));
    } else if (is_symbol("(")) {
      auto call = make(Kind::call, line, "", std::move(of));
      call->arguments = parse_arguments();
      of = std::move(call);
    } else {
      break;
    }
  }
  return of;
}

ExpressionPointer ExpressionParser::parse_subscript(ExpressionPointer of) {
  const int line = here().line;
  const auto ends_part = [&] { return is_symbol(":") || is_symbol("]"); };
  if (is_symbol("]")) fail(Code::corrupt, "an index is expected");
  ExpressionPointer first = ends_part() ? nullptr : parse_expression();
  if (!is_symbol(":")) {
    expect_symbol("]");
    return make(Kind::subscript, line, "", std::move(of), std::move(first));
  }
  take();
  ExpressionPointer stop = ends_part() ? nullptr : parse_expression();
  ExpressionPointer step;
  if (take_symbol(":") && !is_symbol("]")) step = parse_expression();
  expect_symbol("]");
  return make(Kind::slice, line, "", std::move(of), std::move(first), std::move(stop),
              std::move(step));
}

ExpressionPointer ExpressionParser::parse_filters(ExpressionPointer of) {
  while (!error_) {
    const int line = here().line;
    if (take_symbol("|")) {
      auto filter = make(Kind::filter, line, expect_any_name(), std::move(of));
      if (is_symbol("(")) filter->arguments = parse_arguments();
      of = parse_postfix(std::move(filter));
    } else if (take_name("is")) {
      of = parse_test(std::move(of));
    } else {
      break;
    }
  }
  return of;
}

ExpressionPointer ExpressionParser::parse_test(ExpressionPointer of) {
  const int line = here().line;
  const bool is_negated = take_name("not");
  auto test = make(Kind::test, line, expect_any_name(), std::move(of));
  if (is_symbol("(")) {
    test->arguments = parse_arguments();
  } else {
    // An argument may stand without brackets: "is divisibleby 3".
    const Token::Kind next = here().kind;
    const bool is_word = next == Token::Kind::name && !is_name("and") && !is_name("or") &&
                         !is_name("else") && !is_name("if") && !is_name("is") && !is_name("not") &&
                         !is_name("in");
    if (is_word || next == Token::Kind::string || next == Token::Kind::number || is_symbol("[")) {
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
    }
  }
  if (is_negated) return make(Kind::unary, line, "not", ExpressionPointer(std::move(test)));
  return test;
}

Arguments ExpressionParser::parse_arguments() {
  Arguments arguments;
  expect_symbol("(");
  while (!error_ && !is_symbol(")")) {
    const bool is_named = here().kind == Token::Kind::name && ahead().kind == Token::Kind::symbol &&
                          ahead().text == "=";
    if (is_named) {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      arguments.positional.push_back(parse_expression());
    }
    if (!take_symbol(",")) break;
  }
  expect_symbol(")");
  return arguments;
}

}  // namespace bottomless::text
