// The parser of expressions; statements (jinja_parser.cc) are made of them.
// Thread-safety: one thread at a time.
#pragma once
#include <bottomless/result.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"
#include "jinja/syntax.h"

namespace bottomless::text {

// Reads tokens one after the other. After the first failure it stands at the end, so that everything that reads on
// comes to an end, and what was made so far is thrown away.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& here() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take();
  bool is_symbol(std::string_view text) const;
  bool is_name(std::string_view text) const;
  bool take_symbol(std::string_view text);  // if it is there
  bool take_name(std::string_view text);
  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_any_name();
  void expect(Token::Kind kind, std::string_view what);

  void fail(Code code, const std::string& what);
  const std::optional<Error>& error() const { return error_; }

  // A tuple without brackets is a list.
  ExpressionPointer parse_expression_list();
  ExpressionPointer parse_expression();
  // Without "a if b": where "if" means something else.
  ExpressionPointer parse_unconditional() { return parse_or(); }

  // Guards against sources that would exhaust the stack; false: too deep, and that is an error.
  bool enter();
  void leave() { --depth_; }

 private:
  template <class... Parts>
  std::unique_ptr<Expression> make(Expression::Kind kind, int line, std::string name,
                                   Parts... parts);
  ExpressionPointer parse_or();
  ExpressionPointer parse_and();
  ExpressionPointer parse_not();
  ExpressionPointer parse_comparison();
  ExpressionPointer parse_binary(size_t level);
  ExpressionPointer parse_unary();
  ExpressionPointer parse_primary();
  ExpressionPointer parse_bracketed();
  ExpressionPointer parse_mapping();
  ExpressionPointer parse_postfix(ExpressionPointer of);
  ExpressionPointer parse_filters(ExpressionPointer of);
  ExpressionPointer parse_test(ExpressionPointer of);
  ExpressionPointer parse_subscript(ExpressionPointer of);
  Arguments parse_arguments();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::optional<Error> error_;
};

}  // namespace bottomless::text
