#include "tokenizers/split.h"

#include <algorithm>
#include <array>
#include <utility>

namespace bottomless::text {
namespace {

struct SplitPiece {
  Span span;
  bool is_delimiter;
};

// Matches and what lies between them, without gaps.
Result<std::vector<SplitPiece>> pieces_of(std::string_view text, const Regex& pattern,
                                          Delimiter delimiter) {
  std::vector<Span> matches;
  matches.reserve(text.size() / 4);
  if (Result<void> found = pattern.find_all(text, matches); !found.ok())
    return std::move(found).error();
  const bool match_is_delimiter = delimiter == Delimiter::matches;
  std::vector<SplitPiece> pieces;
  pieces.reserve(matches.size() + 1);
  size_t done = 0;
  for (const Span& match : matches) {
    if (done < match.begin) pieces.push_back({{done, match.begin}, !match_is_delimiter});
    pieces.push_back({match, match_is_delimiter});
    done = match.end;
  }
  if (done < text.size()) pieces.push_back({{done, text.size()}, !match_is_delimiter});
  return pieces;
}

void append_contiguous(const std::vector<SplitPiece>& pieces, size_t offset,
                       std::vector<Span>& parts) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Span& span = pieces[i].span;
    if (i > 0 && pieces[i].is_delimiter == pieces[i - 1].is_delimiter) {
      parts.back().end = offset + span.end;
    } else {
      parts.push_back({offset + span.begin, offset + span.end});
    }
  }
}

void append_with_previous(const std::vector<SplitPiece>& pieces, size_t offset,
                          std::vector<Span>& parts) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Span& span = pieces[i].span;
    if (i > 0 && pieces[i].is_delimiter && !pieces[i - 1].is_delimiter) {
      parts.back().end = offset + span.end;
    } else {
      parts.push_back({offset + span.begin, offset + span.end});
    }
  }
}

void append_with_next(const std::vector<SplitPiece>& pieces, size_t offset,
                      std::vector<Span>& parts) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Span& span = pieces[i].span;
    if (i > 0 && !pieces[i].is_delimiter && pieces[i - 1].is_delimiter) {
      parts.back().end = offset + span.end;
    } else {
      parts.push_back({offset + span.begin, offset + span.end});
    }
  }
}

}  // namespace

std::optional<Behaviour> behaviour_named(std::string_view name) {
  constexpr auto kNames = std::to_array<std::pair<std::string_view, Behaviour>>(
      {{"Removed", Behaviour::removed},
       {"Isolated", Behaviour::isolated},
       {"Contiguous", Behaviour::contiguous},
       {"MergedWithPrevious", Behaviour::merged_with_previous},
       {"MergedWithNext", Behaviour::merged_with_next}});
  const auto* found = std::find_if(kNames.begin(), kNames.end(),
                                   [&](const auto& known) { return known.first == name; });
  if (found == kNames.end()) return {};
  return found->second;
}

Result<void> split(std::string_view text, size_t offset, const Regex& pattern, Behaviour behaviour,
                   Delimiter delimiter, std::vector<Span>& parts) {
  const Result<std::vector<SplitPiece>> found = pieces_of(text, pattern, delimiter);
  if (!found.ok()) return found.error();
  const std::vector<SplitPiece>& pieces = found.value();
  switch (behaviour) {
    case Behaviour::contiguous:
      append_contiguous(pieces, offset, parts);
      break;
    case Behaviour::merged_with_previous:
      append_with_previous(pieces, offset, parts);
      break;
    case Behaviour::merged_with_next:
      append_with_next(pieces, offset, parts);
      break;
    case Behaviour::removed:
    case Behaviour::isolated:
      for (const auto& [span, is_delimiter] : pieces) {
        if (is_delimiter && behaviour == Behaviour::removed) continue;
        parts.push_back({offset + span.begin, offset + span.end});
      }
  }
  return {};
}

}  // namespace bottomless::text
