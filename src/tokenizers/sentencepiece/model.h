// The pieces of a tokenizer.model, and the two ways of cutting a normalised text into them.
// Thread-safety: const use from any thread.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizers/byte_trie.h"
#include "tokenizers/piece_table.h"
#include "tokenizers/sentencepiece/model_file.h"

namespace bottomless::text {

class SentencepieceModel {
 public:
  // Errors are Code::corrupt or Code::unsupported.
  static Result<SentencepieceModel> make(SentencepieceFile file);

  struct Cut {
    std::string_view text;
    int32_t id;
  };
  std::vector<Cut> cut(std::string_view normalized) const;

  const SentencepieceFile& file() const { return file_; }
  // By its text, of any kind.
  std::optional<int32_t> id_of(std::string_view piece) const;
  int32_t unknown() const { return unknown_; }
  int32_t byte_id(char byte) const { return byte_ids_[static_cast<uint8_t>(byte)]; }
  // Pieces that are neither normalised nor merged with others.
  const ByteTrie& user_defined() const { return user_defined_; }

 private:
  SentencepieceModel() = default;
  struct Symbol;
  struct Merging;
  std::vector<Cut> cut_by_merging(std::string_view normalized) const;
  void merge(std::span<Symbol> symbols, Merging& merging) const;
  std::vector<Cut> cut_by_likelihood(std::string_view normalized) const;
  int32_t id_or_unknown(std::string_view piece) const { return id_of(piece).value_or(unknown_); }
  int32_t find(std::string_view piece) const {
    return pieces_.find(piece,
                        [this](int32_t id) { return std::string_view(file_.pieces[id].text); });
  }
  bool is_unused(int32_t id) const { return file_.pieces[id].kind == Piece::Kind::unused; }

  SentencepieceFile file_;
  PieceTable pieces_;                                       // what text is cut into
  std::unordered_map<std::string_view, int32_t> reserved_;  // the others
  ByteTrie searched_;                                       // pieces_ in use, for the unigram model
  ByteTrie user_defined_;
  struct Weight {
    float score;
    bool is_fixed;
  };
  std::vector<Weight> weights_;  // by id: what the unigram model asks for most, close together
  std::vector<int32_t> byte_ids_;
  // No piece has a blank behind anything else: what blanks begin can be merged by itself.
  bool blanks_begin_pieces_ = true;
  bool has_text_twice_ = false;  // in pieces_ and in reserved_
  int32_t unknown_ = -1;
  float least_score_ = 0;
  float greatest_score_ = 0;
};

}  // namespace bottomless::text
