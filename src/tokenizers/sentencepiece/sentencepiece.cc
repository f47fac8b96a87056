#include "tokenizers/sentencepiece/sentencepiece.h"

#include <algorithm>
#include <utility>

#include "tokenizers/decoder.h"
#include "tokenizers/sentencepiece/model.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/normalizer.h"
#include "unicode/utf8.h"

namespace bottomless::text {
namespace {

class SentencepieceTokenizer : public Tokenizer {
 public:
  SentencepieceTokenizer(SentencepieceModel model, SentencepieceNormalizer normalizer,
                         AddedTokens added, BlankInFront blank)
      : model_(std::move(model)),
        normalizer_(std::move(normalizer)),
        added_(std::move(added)),
        blank_(blank) {
    const SentencepieceFile& file = model_.file();
    bos = model_.id_of(file.bos_piece);
    eos = model_.id_of(file.eos_piece);
    pad = model_.id_of(file.pad_piece);
    if (bos) bos_token = file.bos_piece;
    if (eos) eos_token = file.eos_piece;
    adds_bos = bos.has_value();  // as Llama's, unless tokenizer_config.json says otherwise
  }

  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    encode_parts(text, nullptr, [&](int32_t id, size_t) { ids.push_back(id); });
    return ids;
  }

  Result<std::vector<PlacedToken>> encode_placed(std::string_view text) const override {
    std::vector<PlacedToken> placed;
    std::vector<size_t> origins;
    encode_parts(text, &origins, [&](int32_t id, size_t begin) { placed.push_back({id, begin}); });
    return placed;
  }

  Result<std::string> decode(std::span<const int32_t> ids) const override {
    std::string text;
    std::string bytes;
    bool is_at_begin = true;
    for (const int32_t id : ids) {
      const Piece* piece = piece_of(id);
      if (piece != nullptr && piece->kind == Piece::Kind::byte) {
        bytes.push_back(static_cast<char>(byte_of_token(piece->text)));
        continue;
      }
      end_bytes(bytes, text);
      if (!text.empty()) is_at_begin = false;
      if (const std::string* token = added_.token_of(id)) {
        text += *token;
      } else if (piece != nullptr) {
        is_at_begin = decode_piece(*piece, is_at_begin, text);
      }
    }
    end_bytes(bytes, text);
    return text;
  }

  int64_t vocabulary_size() const override {
    return std::max(static_cast<int64_t>(model_.file().pieces.size()),
                    int64_t{added_.greatest_id()} + 1);
  }

  std::optional<int32_t> id_of(std::string_view token) const override {
    const std::optional<int32_t> added = added_.id_of(token);
    return added ? added : model_.id_of(token);
  }

 private:
  const Piece* piece_of(int32_t id) const {
    const auto& pieces = model_.file().pieces;
    return id >= 0 && static_cast<size_t>(id) < pieces.size() ? &pieces[id] : nullptr;
  }

  // Calls `add(id, begin)`; where it begins is known if there is room for origins.
  template <class Add>
  void encode_parts(std::string_view text, std::vector<size_t>* origins, Add add) const {
    std::string valid;
    if (!is_utf8(text)) text = valid = replace_invalid(text);
    for (const AddedTokens::Part& part : added_.split(text, AddedTokens::Form::raw)) {
      const auto begin = static_cast<size_t>(part.text.data() - text.data());
      if (part.id) {
        add(*part.id, begin);
        continue;
      }
      if (origins != nullptr) origins->clear();
      encode_pieces(
          normalizer_.apply(part.text, model_.user_defined(),
                            begin == 0 || blank_ == BlankInFront::of_each_part
                                ? SentencepieceNormalizer::Place::front
                                : SentencepieceNormalizer::Place::behind,
                            origins),
          [&](int32_t id, size_t at) { add(id, origins == nullptr ? 0 : begin + (*origins)[at]); });
    }
  }

  // Calls `add(id, place in the normalised text)`.
  template <class Add>
  void encode_pieces(const std::string& normalized, Add add) const {
    bool follows_unknown = false;  // a run of them is one
    size_t at = 0;
    for (const auto& [text, id] : model_.cut(normalized)) {
      const bool is_unknown = id == model_.unknown();
      if (is_unknown && model_.file().falls_back_to_bytes) {
        for (const char byte : text) add(model_.byte_id(byte), at);
      } else if (!is_unknown || !follows_unknown) {
        add(id, at);
      }
      at += text.size();
      follows_unknown = is_unknown;
    }
  }

  static void end_bytes(std::string& bytes, std::string& text) {
    // Character by character, and one U+FFFD for each byte that belongs to none.
    for (std::string_view rest = bytes; !rest.empty();) {
      const size_t most = std::min(rest.size(), bytes_of_character(rest[0]));
      if (is_utf8(rest.substr(0, most))) {
        text += rest.substr(0, most);
        rest.remove_prefix(most);
      } else {
        text += "\xEF\xBF\xBD";
        rest.remove_prefix(1);
      }
    }
    bytes.clear();
  }

  // Appends what the piece stands for; true if a piece that follows is still the first one.
  bool decode_piece(const Piece& piece, bool is_at_begin, std::string& text) const {
    const SentencepieceFile& file = model_.file();
    if (piece.kind == Piece::Kind::control) return is_at_begin;
    if (piece.kind == Piece::Kind::unknown) {
      text += file.unknown_surface;
      return is_at_begin;
    }
    std::string_view rest = piece.text;
    bool had_space = false;
    if (is_at_begin && (file.adds_space_in_front || file.removes_extra_spaces)) {
      had_space = rest.starts_with(kEscapedSpace);
      if (had_space) rest.remove_prefix(kEscapedSpace.size());
      if (file.removes_extra_spaces) had_space = false;
    }
    while (!rest.empty()) {
      const bool is_space = rest.starts_with(kEscapedSpace);
      const size_t bytes = is_space ? kEscapedSpace.size() : 1;
      text += is_space ? std::string_view(" ") : rest.substr(0, bytes);
      rest.remove_prefix(bytes);
    }
    return is_at_begin && !had_space;
  }

  SentencepieceModel model_;
  SentencepieceNormalizer normalizer_;
  AddedTokens added_;
  BlankInFront blank_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> parse_sentencepiece(std::string_view bytes,
                                                       std::vector<AddedToken> added,
                                                       BlankInFront blank,
                                                       const std::string& attempted) {
  Result<SentencepieceFile> file = parse_sentencepiece_file(bytes, attempted);
  if (!file.ok()) return file.error();
  auto normalizer = SentencepieceNormalizer::make(file.value());
  if (!normalizer.ok()) {
    return Error{normalizer.error().code, attempted + ": " + normalizer.error().message};
  }
  Result<SentencepieceModel> model = SentencepieceModel::make(std::move(file).value());
  if (!model.ok()) return Error{model.error().code, attempted + ": " + model.error().message};
  for (AddedToken& token : added) {
    if (token.id == kIdOfPiece) token.id = model.value().id_of(token.content).value_or(kIdOfPiece);
  }
  std::erase_if(added, [](const AddedToken& token) { return token.id == kIdOfPiece; });
  Result<AddedTokens> all_added = AddedTokens::make(std::move(added), nullptr);
  if (!all_added.ok()) return all_added.error();
  return std::unique_ptr<Tokenizer>(std::make_unique<SentencepieceTokenizer>(
      std::move(model).value(), std::move(normalizer).value(), std::move(all_added).value(),
      blank));
}

}  // namespace bottomless::text
