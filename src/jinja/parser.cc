#include <algorithm>
#include <array>
#include <utility>

#include "jinja/expressions.h"
#include "jinja/syntax.h"

namespace bottomless::text {
namespace {

using StatementKind = Statement::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : in_(std::move(tokens)) {}

  Result<Block> run() {
    Block block = parse_block({});
    if (!in_.error() && in_.here().kind != Token::Kind::end) {
      in_.fail(Code::corrupt, "this tag ends nothing");
    }
    if (in_.error()) return *in_.error();
    return block;
  }

 private:
  // Statements up to a tag that begins with one of `ends`; the parser then stands behind its "{%".
  Block parse_block(std::initializer_list<std::string_view> ends) {
    Block block;
    if (!in_.enter()) return block;
    while (!in_.error() && in_.here().kind != Token::Kind::end) {
      const Token token = in_.take();
      if (token.kind == Token::Kind::text) {
        block.push_back(make(StatementKind::text, token.line));
        block.back().text = token.text;
      } else if (token.kind == Token::Kind::output_begin) {
        block.push_back(make(StatementKind::output, token.line));
        block.back().expression = in_.parse_expression_list();
        in_.expect(Token::Kind::output_end, "'}}'");
      } else {
        const bool is_end = std::any_of(ends.begin(), ends.end(),
                                        [&](std::string_view end) { return in_.is_name(end); });
        if (is_end) break;
        parse_tag(block);
      }
    }
    in_.leave();
    return block;
  }

  static Statement make(StatementKind kind, int line) {
    Statement made;
    made.kind = kind;
    made.line = line;
    return made;
  }

  void end_tag() { in_.expect(Token::Kind::block_end, "'%}'"); }

  void close(std::string_view name) {
    in_.expect_name(name);
    end_tag();
  }

  void parse_tag(Block& block) {
    const int line = in_.here().line;
    if (in_.take_name("if")) {
      block.push_back(parse_if(line));
    } else if (in_.take_name("for")) {
      block.push_back(parse_for(line));
    } else if (in_.take_name("set")) {
      block.push_back(parse_set(line));
    } else if (in_.take_name("macro")) {
      block.push_back(parse_macro(line));
    } else if (in_.take_name("generation")) {
      block.push_back(make(StatementKind::generation, line));
      end_tag();
      block.back().body = parse_block({"endgeneration"});
      close("endgeneration");
    } else if (in_.is_name("break") || in_.is_name("continue")) {
      if (loops_ == 0) in_.fail(Code::corrupt, "this stands outside of a loop");
      block.push_back(make(
          in_.is_name("break") ? StatementKind::break_loop : StatementKind::continue_loop, line));
      in_.take();
      end_tag();
    } else {
      in_.fail(Code::unsupported, "this tag is not supported");
    }
  }

  Statement parse_if(int line) {
    Statement made = make(StatementKind::condition, line);
    made.expression = in_.parse_expression_list();
    end_tag();
    made.body = parse_block({"elif", "else", "endif"});
    const int next_line = in_.here().line;
    if (in_.take_name("elif")) {
      if (in_.enter()) made.otherwise.push_back(parse_if(next_line));
      in_.leave();
      return made;
    }
    if (in_.take_name("else")) {
      end_tag();
      made.otherwise = parse_block({"endif"});
    }
    close("endif");
    return made;
  }

  Statement parse_for(int line) {
    Statement made = make(StatementKind::loop, line);
    const bool in_brackets = in_.take_symbol("(");
    do {
      made.names.push_back(in_.expect_any_name());
    } while (in_.take_symbol(","));
    if (in_brackets) in_.expect_symbol(")");
    in_.expect_name("in");
    made.expression = in_.parse_unconditional();
    if (in_.take_name("if")) made.filter = in_.parse_expression();
    if (in_.is_name("recursive")) in_.fail(Code::unsupported, "a loop cannot be");
    end_tag();
    ++loops_;
    made.body = parse_block({"else", "endfor"});
    --loops_;
    if (in_.take_name("else")) {
      end_tag();
      made.otherwise = parse_block({"endfor"});
    }
    close("endfor");
    return made;
  }

  Statement parse_set(int line) {
    Statement made = make(StatementKind::assignment, line);
    made.names.push_back(in_.expect_any_name());
    if (in_.take_symbol(".")) made.names.push_back(in_.expect_any_name());
    if (in_.is_symbol(",")) in_.fail(Code::unsupported, "setting several names is not supported");
    if (in_.take_symbol("=")) {
      made.expression = in_.parse_expression_list();
      end_tag();
      return made;
    }
    made.kind = StatementKind::captured;
    if (in_.is_symbol("|")) in_.fail(Code::unsupported, "a filter of a block is not supported");
    end_tag();
    made.body = parse_block({"endset"});
    close("endset");
    return made;
  }

  Statement parse_macro(int line) {
    Statement made = make(StatementKind::definition, line);
    auto macro = std::make_shared<Macro>();
    macro->name = in_.expect_any_name();
    in_.expect_symbol("(");
    while (!in_.error() && !in_.is_symbol(")")) {
      std::string name = in_.expect_any_name();
      macro->parameters.emplace_back(std::move(name),
                                     in_.take_symbol("=") ? in_.parse_expression() : nullptr);
      if (!in_.take_symbol(",")) break;
    }
    in_.expect_symbol(")");
    end_tag();
    const int loops_outside = std::exchange(loops_, 0);
    macro->body = parse_block({"endmacro"});
    loops_ = loops_outside;
    close("endmacro");
    made.macro = std::move(macro);
    return made;
  }

  ExpressionParser in_;
  int loops_ = 0;  // around the place that is read
};

}  // namespace

Result<Block> parse_jinja(std::string_view source) {
  Result<std::vector<Token>> tokens = cut_jinja(source);
  if (!tokens.ok()) return tokens.error();
  return Parser(std::move(tokens).value()).run();
}

}  // namespace bottomless::text
