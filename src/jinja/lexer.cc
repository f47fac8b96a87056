#include "jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool is_name_start(char byte) {
  return std::isalpha(static_cast<unsigned char>(byte)) || byte == '_';
}
bool is_digit(char byte) { return std::isdigit(static_cast<unsigned char>(byte)) != 0; }
bool is_name_part(char byte) { return is_name_start(byte) || is_digit(byte); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    // The last line break of a file is not part of the template.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  Result<std::vector<Token>> run() {
    while (wrong_.empty() && at_ < source_.size()) text_and_tag();
    if (!wrong_.empty()) {
      return Error{Code::corrupt, "line " + std::to_string(line_) + ": " + wrong_};
    }
    emit(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return source_.substr(at_); }

  void advance(size_t bytes) {
    const std::string_view passed = source_.substr(at_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += bytes;
    if (!passed.empty()) follows_line_break_ = passed.back() == '\n';
  }

  void emit(Token::Kind kind, std::string text) {
    tokens_.push_back({kind, std::move(text), line_});
  }

  void skip_spaces() { advance(std::min(rest().find_first_not_of(kSpaces), rest().size())); }

  void text_and_tag() {
    size_t open = at_;
    const auto opens_tag = [&](size_t place) {
      const std::string_view tag = source_.substr(place, 2);
      return tag == "{{" || tag == "{%" || tag == "{#";
    };
    while (open < source_.size() && !opens_tag(open)) ++open;
    std::string_view text = source_.substr(at_, open - at_);
    const std::string_view tag = source_.substr(open, 2);
    const char sign = open + 2 < source_.size() ? source_[open + 2] : '\0';
    if (!tag.empty() && sign == '-') {
      text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
    } else if (!tag.empty() && sign != '+' && tag != "{{") {
      const size_t line_start = text.rfind('\n') + 1;  // 0 if there is none
      const bool begins_line = line_start > 0 || follows_line_break_;
      if (begins_line && text.find_first_not_of(kSpaces, line_start) == std::string_view::npos) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) emit(Token::Kind::text, std::string(text));
    advance(open - at_);
    if (tag.empty()) return;
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (tag == "{#") {
      comment();
    } else if (tag == "{{") {
      emit(Token::Kind::output_begin, "");
      inside("}}", Token::Kind::output_end);
    } else {
      emit(Token::Kind::block_begin, "");
      inside("%}", Token::Kind::block_end);
    }
  }

  void comment() {
    const size_t close = source_.find("#}", at_);
    if (close == std::string_view::npos) {
      wrong_ = "a comment is not closed";
      return;
    }
    const char sign = close > at_ ? source_[close - 1] : '\0';
    advance(close + 2 - at_);
    behind_tag(sign, true);
  }

  // A minus takes all space behind a tag away; blocks and comments take one line break, unless there is a plus.
  void behind_tag(char sign, bool takes_line_break) {
    if (sign == '-') {
      skip_spaces();
    } else if (takes_line_break && sign != '+') {
      if (rest().starts_with('\n')) advance(1);
    }
  }

  void inside(std::string_view close, Token::Kind close_kind) {
    int depth = 0;  // of brackets: "}}" inside them is two of them
    while (wrong_.empty()) {
      skip_spaces();
      if (rest().empty()) {
        wrong_ = "a tag is not closed";
        return;
      }
      const char sign = rest()[0];
      const bool has_sign = (sign == '-' || sign == '+') && rest().substr(1).starts_with(close);
      if (depth == 0 && (has_sign || rest().starts_with(close))) {
        advance(close.size() + (has_sign ? 1 : 0));
        emit(close_kind, "");
        behind_tag(has_sign ? sign : '\0', close_kind == Token::Kind::block_end);
        return;
      }
      const std::optional<int> change = token();
      depth += change.value_or(0);
    }
  }

  // One token; says by how much it changes the depth of brackets.
  std::optional<int> token() {
    const char first = rest()[0];
    if (first == '\'' || first == '"') return string(first);
    if (is_digit(first)) return number();
    if (is_name_start(first)) {
      size_t bytes = 1;
      while (bytes < rest().size() && is_name_part(rest()[bytes])) ++bytes;
      emit(Token::Kind::name, std::string(rest().substr(0, bytes)));
      advance(bytes);
      return {};
    }
    constexpr auto kSymbols = std::to_array<std::string_view>(
        {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
         ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ",", ".", ":", "|"});
    for (const std::string_view symbol : kSymbols) {
      if (!rest().starts_with(symbol)) continue;
      emit(Token::Kind::symbol, std::string(symbol));
      advance(symbol.size());
      const bool opens = symbol == "(" || symbol == "[" || symbol == "{";
      const bool closes = symbol == ")" || symbol == "]" || symbol == "}";
      return opens ? 1 : closes ? -1 : 0;
    }
    wrong_ = std::string(rest().substr(0, 1)) + " is not expected here";
    return {};
  }

  std::optional<int> number() {
    size_t bytes = 0;
    const auto digits = [&] {
      while (bytes < rest().size() && is_digit(rest()[bytes])) ++bytes;
    };
    digits();
    if (bytes + 1 < rest().size() && rest()[bytes] == '.' && is_digit(rest()[bytes + 1])) {
      ++bytes;
      digits();
    }
    if (bytes < rest().size() && (rest()[bytes] == 'e' || rest()[bytes] == 'E')) {
      const size_t before = bytes++;
      if (bytes < rest().size() && (rest()[bytes] == '-' || rest()[bytes] == '+')) ++bytes;
      const size_t exponent = bytes;
      digits();
      if (bytes == exponent) bytes = before;  // a name follows
    }
    emit(Token::Kind::number, std::string(rest().substr(0, bytes)));
    advance(bytes);
    return {};
  }

  std::optional<int> string(char quote) {
    std::string text;
    size_t i = 1;
    for (; i < rest().size() && rest()[i] != quote; ++i) {
      if (rest()[i] == '\\' && i + 1 < rest().size()) {
        i += escape(rest().substr(i), text);
      } else {
        text += rest()[i];
      }
    }
    if (i >= rest().size()) {
      wrong_ = "a string is not closed";
      return {};
    }
    emit(Token::Kind::string, std::move(text));
    advance(i + 1);
    return {};
  }

  // Appends what an escape stands for; how many bytes follow the backslash.
  static size_t escape(std::string_view escaped, std::string& text) {
    constexpr std::string_view kNames = "ntrbfv0'\"\\";
    constexpr std::string_view kValues("\n\t\r\b\f\v\0'\"\\", 10);
    const char name = escaped[1];
    const size_t digits = name == 'x' ? 2 : name == 'u' ? 4 : name == 'U' ? 8 : 0;
    if (digits > 0 && escaped.size() >= 2 + digits) {
      const std::string code(escaped.substr(2, digits));
      if (std::all_of(code.begin(), code.end(),
                      [](unsigned char byte) { return std::isxdigit(byte) != 0; })) {
        const auto value = static_cast<char32_t>(std::stoul(code, nullptr, 16));
        append(value < 0x110000 && (value < 0xD800 || value > 0xDFFF) ? value : 0xFFFD, text);
        return 1 + digits;
      }
    }
    const size_t place = kNames.find(name);
    if (place == std::string_view::npos) {
      text += '\\';
      text += name;
    } else {
      text += kValues[place];
    }
    return 1;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool follows_line_break_ = true;
  std::string wrong_;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> cut_jinja(std::string_view source) {
  std::string lines;  // that end as on Unix
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    lines += source[i] == '\r' ? '\n' : source[i];
  }
  return Lexer(lines).run();
}

}  // namespace bottomless::text
