// Cuts the source of a template into tokens.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <string>
#include <string_view>
#include <vector>

namespace bottomless::text {

struct Token {
  enum class Kind {
    text,
    output_begin,
    output_end,
    block_begin,
    block_end,
    name,
    string,
    number,
    symbol,  // an operator or a bracket
    end,
  };
  Kind kind;
  std::string text;  // of a string, what it stands for
  int line;
};

// The last token is Kind::end. Errors are Code::corrupt and name the line.
Result<std::vector<Token>> cut_jinja(std::string_view source);

}  // namespace bottomless::text
