#include "text/sentencepiece_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>

#include "text/decoder.h"
#include "text/utf8.h"

namespace bottomless::text {
namespace {

constexpr int32_t kNone = -1;

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
  model.byte_ids_.assign(256, kNone);
  model.least_score_ = std::numeric_limits<float>::max();
  model.greatest_score_ = std::numeric_limits<float>::min();
  for (size_t i = 0; i < model.file_.pieces.size(); ++i) {
    const Piece& piece = model.file_.pieces[i];
    const auto id = static_cast<int32_t>(i);
    const bool is_searched = piece.kind == Piece::Kind::normal ||
                             piece.kind == Piece::Kind::user_defined ||
                             piece.kind == Piece::Kind::unused;
    if (piece.text.empty() ||
        !(is_searched ? model.pieces_ : model.reserved_).emplace(piece.text, id).second) {
      return Error{Code::corrupt, "the piece '" + piece.text + "' is empty or stands twice"};
    }
    if (is_searched && model.file_.kind == Kind::unigram) model.searched_.insert(piece.text, id);
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
  if (model.unknown_ == kNone) return Error{Code::corrupt, "it has no unknown piece"};
  if (model.file_.falls_back_to_bytes &&
      std::find(model.byte_ids_.begin(), model.byte_ids_.end(), kNone) != model.byte_ids_.end()) {
    return Error{Code::corrupt, "it falls back to bytes and lacks some of the 256 pieces"};
  }
  return model;
}

std::optional<int32_t> SentencepieceModel::id_of(std::string_view piece) const {
  const auto reserved = reserved_.find(piece);
  if (reserved != reserved_.end()) return reserved->second;
  const auto found = pieces_.find(piece);
  if (found != pieces_.end()) return found->second;
  return {};
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut(std::string_view normalized) const {
  return file_.kind == SentencepieceFile::Kind::bpe ? cut_by_merging(normalized)
                                                    : cut_by_likelihood(normalized);
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut_by_merging(
    std::string_view normalized) const {
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  struct Symbol {
    std::string_view text;  // empty: merged into the one before
    uint32_t previous;
    uint32_t next;
    bool is_fixed;
  };
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < normalized.size();) {
    const auto fixed = user_defined_.longest_prefix(normalized.substr(at));
    const size_t bytes = fixed ? fixed->bytes : bytes_of_character(normalized[at]);
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({normalized.substr(at, bytes), index == 0 ? kEnd : index - 1, index + 1,
                       fixed.has_value()});
    at += bytes;
  }
  if (symbols.empty()) return {};
  symbols.back().next = kEnd;

  struct Candidate {
    float score;
    uint32_t left;
    uint32_t right;
    size_t bytes;
    bool operator<(const Candidate& other) const {
      return score < other.score || (score == other.score && left > other.left);
    }
  };
  std::priority_queue<Candidate> queue;
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> halves;
  const auto joined = [&](const Symbol& left, const Symbol& right) {
    return std::string_view(left.text.data(), left.text.size() + right.text.size());
  };
  const auto offer = [&](uint32_t left, uint32_t right) {
    if (left == kEnd || right == kEnd || symbols[left].is_fixed || symbols[right].is_fixed) return;
    const std::string_view text = joined(symbols[left], symbols[right]);
    const auto piece = pieces_.find(text);
    if (piece == pieces_.end()) return;
    queue.push({file_.pieces[piece->second].score, left, right, text.size()});
    // An unused piece may serve on the way to a longer one; what is left of it falls apart again.
    if (is_unused(piece->second)) halves[text] = {symbols[left].text, symbols[right].text};
  };
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) offer(i, i + 1);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    Symbol& right = symbols[top.right];
    if (left.text.empty() || right.text.empty() ||
        left.text.size() + right.text.size() != top.bytes) {
      continue;
    }
    left.text = joined(left, right);
    left.next = right.next;
    if (right.next != kEnd) symbols[right.next].previous = top.left;
    right.text = {};
    offer(left.previous, top.left);
    offer(top.left, left.next);
  }

  std::vector<Cut> cuts;
  const std::function<void(std::string_view)> emit = [&](std::string_view text) {
    const int32_t id = id_or_unknown(text);
    const auto parts = is_unused(id) ? halves.find(text) : halves.end();
    if (parts == halves.end()) {
      cuts.push_back({text, id});
    } else {
      emit(parts->second.first);
      emit(parts->second.second);
    }
  };
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next) emit(symbols[i].text);
  return cuts;
}

std::vector<SentencepieceModel::Cut> SentencepieceModel::cut_by_likelihood(
    std::string_view normalized) const {
  constexpr float kUnknownPenalty = 10;
  constexpr float kLeastSum = -100000;
  struct Best {  // of all ways to get to one place of the text
    int32_t id = kNone;
    float score = 0;
    size_t from = 0;
  };
  std::vector<Best> best(normalized.size() + 1);
  size_t furthest = 0;
  const auto offer = [&](size_t from, size_t to, int32_t id, float score) {
    const float total = score + best[from].score;
    if (best[to].id != kNone && total <= best[to].score) return;
    best[to] = {id, total, from};
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
      if (!id || is_unused(*id)) continue;
      const auto length = static_cast<float>(to - from);
      const bool is_fixed = file_.pieces[*id].kind == Piece::Kind::user_defined;
      // A bonus that makes sure that it is taken.
      offer(from, to, *id, is_fixed ? length * greatest_score_ - 0.1F : file_.pieces[*id].score);
      has_character = has_character || to - from == character;
    }
    if (!has_character) {
      offer(from, from + character, unknown_, least_score_ - kUnknownPenalty);
    }
    from += character;
  }
  std::vector<Cut> cuts;
  for (size_t to = normalized.size(); to > 0; to = best[to].from) {
    cuts.push_back({normalized.substr(best[to].from, to - best[to].from), best[to].id});
  }
  std::reverse(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace bottomless::text
