#include "tokenizers/sentencepiece/model_file.h"

#include <bit>
#include <cstring>
#include <functional>

namespace bottomless::text {
namespace {

// One field of a message: a number, or bytes.
struct Field {
  uint64_t number;
  uint64_t value;
  std::string_view bytes;
};

// Reads the fields of a message one after the other.
class Message {
 public:
  explicit Message(std::string_view bytes) : rest_(bytes) {}

  bool is_sound() const { return is_sound_; }

  // False at the end, and where the bytes are no message.
  bool next(Field& field) {
    if (rest_.empty()) return false;
    const uint64_t tag = variable_length();
    field = {.number = tag >> 3, .value = 0, .bytes = {}};
    switch (tag & 7) {
      case 0:
        field.value = variable_length();
        break;
      case 1:
        field.value = fixed<uint64_t>();
        break;
      case 2:
        field.bytes = take(variable_length());
        break;
      case 5:
        field.value = fixed<uint32_t>();
        break;
      default:
        is_sound_ = false;
    }
    return is_sound_;
  }

 private:
  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      is_sound_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  uint64_t variable_length() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view byte = take(1);
      if (byte.empty()) return 0;
      value |= uint64_t{static_cast<uint8_t>(byte[0]) & 0x7Fu} << shift;
      if ((byte[0] & 0x80) == 0) return value;
    }
    is_sound_ = false;
    return 0;
  }

  template <class T>
  T fixed() {
    T value = 0;
    const std::string_view bytes = take(sizeof(T));
    if (is_sound_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  std::string_view rest_;
  bool is_sound_ = true;
};

bool each_field(std::string_view bytes, const std::function<void(const Field&)>& look) {
  Message message(bytes);
  Field field;
  while (message.next(field)) look(field);
  return message.is_sound();
}

bool read_piece(std::string_view bytes, Piece& piece) {
  return each_field(bytes, [&](const Field& field) {
    if (field.number == 1) piece.text = field.bytes;
    if (field.number == 2) piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    if (field.number == 3) piece.kind = static_cast<Piece::Kind>(field.value);
  });
}

bool read_trainer(std::string_view bytes, SentencepieceFile& file) {
  return each_field(bytes, [&](const Field& field) {
    if (field.number == 3) file.kind = static_cast<SentencepieceFile::Kind>(field.value);
    if (field.number == 24) file.space_is_suffix = field.value != 0;
    if (field.number == 35) file.falls_back_to_bytes = field.value != 0;
    if (field.number == 44) file.unknown_surface = field.bytes;
    if (field.number == 46) file.bos_piece = field.bytes;
    if (field.number == 47) file.eos_piece = field.bytes;
    if (field.number == 48) file.pad_piece = field.bytes;
  });
}

bool read_normalizer(std::string_view bytes, SentencepieceFile& file) {
  return each_field(bytes, [&](const Field& field) {
    if (field.number == 2) file.character_map = field.bytes;
    if (field.number == 3) file.adds_space_in_front = field.value != 0;
    if (field.number == 4) file.removes_extra_spaces = field.value != 0;
    if (field.number == 5) file.escapes_spaces = field.value != 0;
  });
}

bool read_denormalizer(std::string_view bytes, SentencepieceFile& file) {
  return each_field(bytes, [&](const Field& field) {
    if (field.number == 2 && !field.bytes.empty()) file.denormalizes = true;
  });
}

}  // namespace

Result<SentencepieceFile> parse_sentencepiece_file(std::string_view bytes,
                                                   const std::string& attempted) {
  SentencepieceFile file;
  bool parts_are_sound = true;
  const bool is_sound = each_field(bytes, [&](const Field& field) {
    bool read = true;
    if (field.number == 1) read = read_piece(field.bytes, file.pieces.emplace_back());
    if (field.number == 2) read = read_trainer(field.bytes, file);
    if (field.number == 3) read = read_normalizer(field.bytes, file);
    if (field.number == 5) read = read_denormalizer(field.bytes, file);
    parts_are_sound = parts_are_sound && read;
  });
  if (!is_sound || !parts_are_sound || file.pieces.empty()) {
    return Error{
        Code::corrupt,
        attempted +
            ": it is no model of sentencepiece; the file is corrupt: download or write it again"};
  }
  return file;
}

}  // namespace bottomless::text
