// The regular expressions of a tokenizer.json, which are written for Oniguruma, matched with PCRE2. What the two read
// differently is refused, and characters that their Unicode versions class differently get stand-ins (stand_ins.h).
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "unicode/span.h"

namespace bottomless::text {

class Regex {
 public:
  // Errors are Code::unsupported or Code::corrupt and name the expression.
  static Result<Regex> compile(std::string_view pattern);
  // An expression that matches this text and nothing else.
  static Regex literal(std::string_view text);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends all matches that are not empty, from left to right, none touching another; `text` is UTF-8. Fails where
  // finding one takes more steps or memory than any expression needs that was made for this: some try every way to cut a
  // text into parts before they give up, which for a line is more than there is time for.
  Result<void> find_all(std::string_view text, std::vector<Span>& matches) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace bottomless::text
