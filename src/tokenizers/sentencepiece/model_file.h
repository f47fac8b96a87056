// What a tokenizer.model holds: a message of protocol buffers, of which the fields that matter here are read.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::text {

struct Piece {
  enum class Kind { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  std::string text;
  float score = 0;
  Kind kind = Kind::normal;
};

struct SentencepieceFile {
  enum class Kind { unigram = 1, bpe = 2, word = 3, character = 4 };
  std::vector<Piece> pieces;
  Kind kind = Kind::unigram;
  bool falls_back_to_bytes = false;
  bool space_is_suffix = false;
  std::string unknown_surface = " \xE2\x81\x87 ";  // what an unknown piece is decoded to
  std::string bos_piece = "<s>";
  std::string eos_piece = "</s>";
  std::string pad_piece = "<pad>";

  // How a text is normalised, and whether anything is done to what is decoded.
  std::string character_map;
  bool adds_space_in_front = true;
  bool removes_extra_spaces = true;
  bool escapes_spaces = true;
  bool denormalizes = false;
};

// Errors are Code::corrupt and begin with `attempted`.
Result<SentencepieceFile> parse_sentencepiece_file(std::string_view bytes,
                                                   const std::string& attempted);

}  // namespace bottomless::text
