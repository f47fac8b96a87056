#include "tokenizers/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "unicode/stand_ins.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

using nlohmann::json;

// What a regular expression's \w is in Unicode: letters, marks, digits, connectors and joiners.
bool belongs_to_word(char32_t code) {
  // utf8proc does not know all letters that `tokenizers` knows, but their stand-ins.
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(stand_in(code)))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // letters in circles and squares
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
    default:
      return code == 0x200C || code == 0x200D;
  }
}

bool flag_of(const json& from, const char* name) {
  return from.contains(name) && from[name].get<bool>();
}

bool stands_alone(std::string_view text, Span span) {
  const bool goes_on_before =
      span.begin > 0 && belongs_to_word(last_character(text.substr(0, span.begin)).code);
  const bool goes_on_behind =
      span.end < text.size() && belongs_to_word(first_character(text.substr(span.end)).code);
  return !goes_on_before && !goes_on_behind;
}

size_t begin_of_space_before(std::string_view text, size_t at, size_t least) {
  while (at > least) {
    const Character before = last_character(text.substr(0, at));
    if (!is_whitespace(before.code)) break;
    at -= before.bytes;
  }
  return at;
}

size_t end_of_space_behind(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Character behind = first_character(text.substr(at));
    if (!is_whitespace(behind.code)) break;
    at += behind.bytes;
  }
  return at;
}

}  // namespace

AddedToken parse_added_token(const json& from, int32_t id) {
  return {.content = from.at("content").get<std::string>(),
          .id = id,
          .single_word = flag_of(from, "single_word"),
          .takes_space_before = flag_of(from, "lstrip"),
          .takes_space_behind = flag_of(from, "rstrip"),
          .normalized = flag_of(from, "normalized")};
}

Result<AddedTokens> AddedTokens::make(std::vector<AddedToken> tokens,
                                      const Normalizer* normalizer) {
  AddedTokens made;
  if (Result<void> added = made.add(std::move(tokens), normalizer); !added.ok())
    return std::move(added).error();
  return made;
}

Result<void> AddedTokens::add(std::vector<AddedToken> tokens, const Normalizer* normalizer) {
  tokens_ = std::move(tokens);
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    std::string sought = token.content;
    if (token.normalized && normalizer != nullptr) {
      if (Result<void> applied = normalizer->apply(sought); !applied.ok()) return applied;
    }
    decoded_.push_back(sought);
    ids_[token.content] = token.id;
    places_[token.id] = i;
    greatest_id_ = std::max(greatest_id_, token.id);
    if (sought.empty()) continue;
    Finder& finder = token.normalized ? normalized_ : raw_;
    finder.trie.insert(sought, static_cast<int32_t>(i));
    finder.begins[static_cast<uint8_t>(sought[0])] = true;
  }
  return {};
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, Form form) const {
  const Finder& finder = form == Form::raw ? raw_ : normalized_;
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto match = finder.begins[static_cast<uint8_t>(text[at])]
                           ? finder.trie.longest_prefix(text.substr(at))
                           : std::nullopt;
    if (!match) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[match->value];
    Span span{at, at + match->bytes};
    at = span.end;
    if (token.single_word && !stands_alone(text, span)) continue;
    if (token.takes_space_before) span.begin = begin_of_space_before(text, span.begin, done);
    if (token.takes_space_behind) span.end = end_of_space_behind(text, span.end);
    if (done < span.begin) parts.push_back({text.substr(done, span.begin - done), {}});
    parts.push_back({text.substr(span.begin, span.end - span.begin), token.id});
    done = span.end;
  }
  if (done < text.size()) parts.push_back({text.substr(done), {}});
  return parts;
}

std::optional<int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  if (found == ids_.end()) return {};
  return found->second;
}

const std::string* AddedTokens::token_of(int32_t id) const {
  const auto place = places_.find(id);
  return place == places_.end() ? nullptr : &decoded_[place->second];
}

}  // namespace bottomless::text
