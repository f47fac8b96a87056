// A parsed template. docs/chat-templates.md lists the part of Jinja that is understood.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/value.h"

namespace bottomless::text {

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

struct Arguments {
  std::vector<ExpressionPointer> positional;
  std::vector<std::pair<std::string, ExpressionPointer>> named;
};

struct Expression {
  enum class Kind {
    literal,      // value
    name,         // name
    attribute,    // parts[0].name
    subscript,    // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]], each of these may be null
    call,         // parts[0](arguments)
    filter,       // parts[0] | name(arguments)
    test,         // parts[0] is name(arguments)
    unary,        // name parts[0]
    binary,       // parts[0] name parts[1]
    conditional,  // parts[0] if parts[1] else parts[2], which may be null
    list,         // parts
    mapping,      // parts: key, value, key, value, ...
  };
  Kind kind;
  int line;
  int height = 0;  // of the tree below
  std::string name;
  Value value;
  std::vector<ExpressionPointer> parts;
  Arguments arguments;
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  enum class Kind {
    text,        // text
    output,      // {{ expression }}
    condition,   // if expression: body; else: otherwise
    loop,        // for names in expression if filter: body; else: otherwise
    assignment,  // set names[0] = expression, or names[0].names[1]
    captured,    // set names[0]: body
    generation,  // body is what the assistant says
    definition,  // macro
    break_loop,
    continue_loop,
  };
  Kind kind;
  int line;
  std::string text;
  ExpressionPointer expression;
  ExpressionPointer filter;
  std::vector<std::string> names;
  Block body;
  Block otherwise;
  std::shared_ptr<const Macro> macro;
};

struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExpressionPointer>> parameters;  // with defaults, or null
  Block body;
};

// As Hugging Face renders chat templates: the line break behind a block and the spaces before it are not part of the
// text. Errors are Code::corrupt or Code::unsupported and name the line.
Result<Block> parse_jinja(std::string_view source);

}  // namespace bottomless::text
