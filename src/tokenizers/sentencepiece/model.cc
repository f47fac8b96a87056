#include "tokenizers/sentencepiece/model.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "tokenizers/decoder.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

constexpr int32_t kNoPiece = -1;
constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
constexpr std::string_view kBlank = "\xE2\x96\x81";

std::string_view joined(std::string_view left, std::string_view right) {
  return {left.data(), left.size() + right.size()};
}

// Numbers in the order of scores.
uint32_t rank_of(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // there is one zero
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Whether it has a blank behind another character.
bool has_inner_blank(std::string_view piece) {
  for (size_t at = piece.find(kBlank, 1); at != std::string_view::npos;
       at = piece.find(kBlank, at + 1)) {
    if (!piece.substr(0, at).ends_with(kBlank)) return true;
  }
  return false;
}

}  // namespace

Result<SentencepieceModel> SentencepieceModel::make(SentencepieceFile file) {
  using Kind = SentencepieceFile::Kind;
  if (file.kind != Kind::bpe && file.kind != Kind::unigram) {
    return Error{Code::unsupported, "its kind of model is not supported, only BPE and unigram are"};
  }
  if (file.space_is_suffix) {
    return Error{Code::unsupported, "treat_whitespace_as_suffix is not supported"};
  }
  if (file.denormalizes) return Error{Code::unsupported, "a denormalizer is not supported"};
  SentencepieceModel model;
  model.file_ = std::move(file);
  model.byte_ids_.assign(256, kNoPiece);
  model.least_score_ = std::numeric_limits<float>::max();
  model.greatest_score_ = std::numeric_limits<float>::min();
  for (size_t i = 0; i < model.file_.pieces.size(); ++i) {
    const Piece& piece = model.file_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    const bool is_searched = piece.kind == Piece::Kind::normal ||
                             piece.kind == Piece::Kind::user_defined ||
                             piece.kind == Piece::Kind::unused;
    const auto text_of = [&](int32_t other) {
      return std::string_view(model.file_.pieces[other].text);
    };
    if (piece.text.empty() || !(is_searched ? model.pieces_.insert(piece.text, id, text_of)
                                            : model.reserved_.emplace(piece.text, id).second)) {
      return Error{Code::corrupt, "the piece '" + piece.text + "' is empty or stands twice"};
    }
    if (is_searched && has_inner_blank(piece.text)) model.blanks_begin_pieces_ = false;
    if (is_searched && model.file_.kind == Kind::unigram && !model.is_unused(id))
      model.searched_.insert(piece.text, id);
    model.weights_.push_back({piece.score, piece.kind == Piece::Kind::user_defined});
    if (piece.kind == Piece::Kind::user_defined) model.user_defined_.insert(piece.text, id);
    if (piece.kind == Piece::Kind::unknown) model.unknown_ = id;
    if (piece.kind == Piece::Kind::byte && byte_of_token(piece.text) >= 0) {
      model.byte_ids_[byte_of_token(piece.text)] = id;
    }
    if (piece.kind == Piece::Kind::normal) {
      model.least_score_ = std::min(model.least_score_, piece.score);
      model.greatest_score_ = std::max(model.greatest_score_, piece.score);
    }
  }
  for (const auto& [text, id] : model.reserved_)
    model.has_text_twice_ = model.has_text_twice_ || model.find(text) != kNoPiece;
  if (model.unknown_ == kNoPiece) return Error{Code::corrupt, "it has no unknown piece"};
  if (model.file_.falls_back_to_bytes && std::find(model.byte_ids_.begin(), model.byte_ids_.end(),
                                                   kNoPiece) != model.byte_ids_.end()) {
    return Error{Code::corrupt, "it falls back to bytes and lacks some of the 256 pieces"};
  }
  return model;
}

std::optional<int32_t> SentencepieceModel::id_of(std::string_view piece) const {
  const auto reserved = reserved_.find(piece);
  if (reserved != reserved_.end()) return reserved->second;
  const int32_t found = find(piece);
  return found == kNoPiece ? std::nullopt : std::optional(found);
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut(std::string_view normalized) const {
  return file_.kind == SentencepieceFile::Kind::bpe ? cut_by_merging(normalized)
                                                    : cut_by_likelihood(normalized);
}

struct SentencepieceModel::Symbol {
  std::string_view text;  // empty: merged into the one before
  uint32_t previous;
  uint32_t next;
  int32_t id;  // kNoPiece: not a result of merging
  bool is_fixed;
};

// What one merging after the other needs.
struct SentencepieceModel::Merging {
  struct Candidate {
    uint64_t order;  // by score, and then from left to right
    uint32_t right;
    uint32_t bytes;
    int32_t id;

    uint32_t left() const { return ~static_cast<uint32_t>(order); }
    bool operator<(const Candidate& other) const { return order < other.order; }
  };
  std::vector<Candidate> heap;
  // An unused piece may serve on the way to a longer one; what is left of it falls apart again.
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> halves;
};

// Symbols name each other by their place in the span.
void SentencepieceModel::merge(std::span<Symbol> symbols, Merging& merging) const {
  auto& heap = merging.heap;
  heap.clear();
  const auto found = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd || symbols[left].is_fixed || symbols[right].is_fixed)
      return false;
    const std::string_view text = joined(symbols[left].text, symbols[right].text);
    const int32_t id = find(text);
    if (id == kNoPiece) return false;
    heap.push_back({uint64_t{rank_of(file_.pieces[id].score)} << 32 | static_cast<uint32_t>(~left),
                    right, static_cast<uint32_t>(text.size()), id});
    if (is_unused(id)) merging.halves[text] = {symbols[left].text, symbols[right].text};
    return true;
  };
  const auto offer = [&](uint32_t left, uint32_t right) {
    if (found(left, right)) std::push_heap(heap.begin(), heap.end());
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) found(i, i + 1);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Merging::Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.left()];
    Symbol& right = symbols[top.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != top.bytes) {
      continue;
    }
    left.text = joined(left.text, right.text);
    left.id = top.id;
    left.next = right.next;
    if (right.next != kEnd) symbols[right.next].previous = top.left();
    right.text = {};
    offer(left.previous, top.left());
    offer(top.left(), left.next);
  }
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut_by_merging(
    std::string_view normalized) const {
  std::vector<Cut> cuts;
  std::vector<Symbol> symbols;
  Merging merging;
  const std::function<void(std::string_view, int32_t)> emit = [&](std::string_view text,
                                                                  int32_t id) {
    const auto parts = is_unused(id) ? merging.halves.find(text) : merging.halves.end();
    if (parts == merging.halves.end()) {
      cuts.push_back({text, id});
    } else {
      emit(parts->second.first, id_or_unknown(parts->second.first));
      emit(parts->second.second, id_or_unknown(parts->second.second));
    }
  };
  const auto end_group = [&] {
    if (symbols.empty()) return;
    symbols.back().next = kEnd;
    merge(symbols, merging);
    for (uint32_t i = 0; i != kEnd; i = symbols[i].next) {
      const Symbol& symbol = symbols[i];
      const bool is_known = symbol.id != kNoPiece && !has_text_twice_;
      emit(symbol.text, is_known ? symbol.id : id_or_unknown(symbol.text));
    }
    symbols.clear();
  };
  for (size_t at = 0; at < normalized.size();) {
    const std::string_view rest = normalized.substr(at);
    const auto fixed = user_defined_.longest_prefix(rest);
    const size_t bytes = fixed ? fixed->bytes : bytes_of_character(rest[0]);
    if (blanks_begin_pieces_ && rest.starts_with(kBlank) && !symbols.empty() &&
        !symbols.back().text.ends_with(kBlank))
      end_group();
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({rest.substr(0, bytes), index == 0 ? kEnd : index - 1, index + 1, kNoPiece,
                       fixed.has_value()});
    at += bytes;
  }
  end_group();
  return cuts;
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut_by_likelihood(
    std::string_view normalized) const {
  constexpr float kUnknownPenalty = 10;
  constexpr float kLeastSum = -100000;
  struct Best {  // of all ways to get to one place of the text
    int32_t id = kNoPiece;
    float score = 0;
    uint32_t back = 0;  // so many bytes
  };
  std::vector<Best> best(normalized.size() + 1);
  size_t furthest = 0;
  const auto offer = [&](size_t from, size_t to, int32_t id, float score) {
    const float total = score + best[from].score;
    if (best[to].id != kNoPiece && total <= best[to].score) return;
    best[to] = {id, total, static_cast<uint32_t>(to - from)};
    furthest = std::max(furthest, to);
  };
  for (size_t from = 0; from < normalized.size();) {
    // Large sums would be coarse. Rounding decides between ways that are about equal, so it is done where sentencepiece does it.
    if (const float base = best[from].score; base < kLeastSum) {
      for (size_t to = from; to <= furthest; ++to) best[to].score -= base;
    }
    const size_t character = bytes_of_character(normalized[from]);
    bool has_character = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t to = from; to < normalized.size();) {
      const auto next = searched_.step(node, normalized[to]);
      if (!next) break;
      node = *next;
      ++to;
      const auto id = searched_.value(node);
      if (!id) continue;
      const auto length = static_cast<float>(to - from);
      const auto [score, is_fixed] = weights_[*id];
      // A bonus that makes sure that it is taken.
      offer(from, to, *id, is_fixed ? length * greatest_score_ - 0.1F : score);
      has_character = has_character || to - from == character;
    }
    if (!has_character) {
      offer(from, from + character, unknown_, least_score_ - kUnknownPenalty);
    }
    from += character;
  }
  std::vector<Cut> cuts;
  for (size_t to = normalized.size(); to > 0; to -= best[to].back) {
    cuts.push_back({normalized.substr(to - best[to].back, best[to].back), best[to].id});
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace bottomless::text
