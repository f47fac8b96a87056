#include "jinja/strings.h"

#include <utf8proc.h>

#include "unicode/forms.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

bool is_python_space(char32_t code) {
  return is_whitespace(code) || (code >= 0x1C && code <= 0x1F);
}

bool is_letter(char32_t code) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_in(std::string_view characters, std::string_view character) {
  return characters.find(character) != std::string_view::npos;
}

void append_upper(Character character, std::string& to) {
  if (character.code == 0xDF) {
    to += "SS";  // ß
  } else {
    append(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character.code))),
           to);
  }
}

}  // namespace

std::string strip(std::string_view text, Side side, std::string_view characters) {
  const auto goes = [&](Character character, std::string_view written) {
    return characters.empty() ? is_python_space(character.code) : is_in(characters, written);
  };
  while (side != Side::right && !text.empty()) {
    const Character first = first_character(text);
    if (!goes(first, text.substr(0, first.bytes))) break;
    text.remove_prefix(first.bytes);
  }
  while (side != Side::left && !text.empty()) {
    const Character last = last_character(text);
    if (!goes(last, text.substr(text.size() - last.bytes))) break;
    text.remove_suffix(last.bytes);
  }
  return std::string(text);
}

std::vector<std::string> split_text(std::string_view text, std::string_view separator,
                                    int64_t most) {
  std::vector<std::string> parts;
  if (!separator.empty()) {
    for (size_t found = text.find(separator);
         found != std::string_view::npos && (most < 0 || std::ssize(parts) < most);
         found = text.find(separator)) {
      parts.emplace_back(text.substr(0, found));
      text.remove_prefix(found + separator.size());
    }
    parts.emplace_back(text);
    return parts;
  }
  std::string rest = strip(text, Side::left);
  while (!rest.empty()) {
    if (most >= 0 && std::ssize(parts) == most) {
      parts.push_back(strip(rest, Side::right));
      break;
    }
    size_t end = 0;
    while (end < rest.size()) {
      const Character character = first_character(std::string_view(rest).substr(end));
      if (is_python_space(character.code)) break;
      end += character.bytes;
    }
    parts.push_back(rest.substr(0, end));
    rest = strip(std::string_view(rest).substr(end), Side::left);
  }
  return parts;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines = split_text(replace_text(text, "\r\n", "\n"), "\n");
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::string replace_text(std::string_view text, std::string_view what, std::string_view by) {
  std::string replaced;
  if (what.empty()) return std::string(text);
  for (size_t found = text.find(what); found != std::string_view::npos; found = text.find(what)) {
    replaced.append(text.substr(0, found)).append(by);
    text.remove_prefix(found + what.size());
  }
  return replaced.append(text);
}

std::string uppercase(std::string_view text) {
  std::string upper;
  for (; !text.empty(); text.remove_prefix(first_character(text).bytes)) {
    append_upper(first_character(text), upper);
  }
  return upper;
}

std::string lowercase(std::string_view text) {
  std::string lower(text);
  make_lowercase(lower);
  return lower;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const Character first = first_character(text);
  return uppercase(text.substr(0, first.bytes)) + lowercase(text.substr(first.bytes));
}

std::string title_case(std::string_view text) {
  std::string title;
  bool follows_letter = false;
  for (; !text.empty(); text.remove_prefix(first_character(text).bytes)) {
    const Character character = first_character(text);
    const std::string_view written = text.substr(0, character.bytes);
    title += follows_letter ? lowercase(written) : uppercase(written);
    follows_letter = is_letter(character.code);
  }
  return title;
}

std::string title_filter(std::string_view text) {
  std::string title;
  bool begins = true;
  for (; !text.empty(); text.remove_prefix(first_character(text).bytes)) {
    const Character character = first_character(text);
    const std::string_view written = text.substr(0, character.bytes);
    title += begins ? uppercase(written) : lowercase(written);
    begins = is_python_space(character.code) || is_in("-({[<", written);
  }
  return title;
}

std::string indent(std::string_view text, std::string_view by, bool first_line_too) {
  std::string indented;
  bool is_first = true;
  for (const std::string& line : split_text(text, "\n")) {
    if (!is_first) indented += '\n';
    const bool is_indented = is_first ? first_line_too : !line.empty();
    if (is_indented) indented += by;
    indented += line;
    is_first = false;
  }
  return indented;
}

}  // namespace bottomless::text
