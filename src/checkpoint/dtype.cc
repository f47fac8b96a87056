#include "checkpoint/dtype.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace bottomless {
namespace {

struct Row {
  std::string_view name;
  Bytes bytes;
};

// In the order of Dtype.
constexpr std::array<Row, kDtypes> kRows = {{{"BOOL", 1},
                                             {"U8", 1},
                                             {"I8", 1},
                                             {"F8_E4M3", 1},
                                             {"F8_E5M2", 1},
                                             {"I16", 2},
                                             {"U16", 2},
                                             {"F16", 2},
                                             {"BF16", 2},
                                             {"I32", 4},
                                             {"U32", 4},
                                             {"F32", 4},
                                             {"I64", 8},
                                             {"U64", 8},
                                             {"F64", 8}}};

const Row& row(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  BOTTOMLESS_CHECK(index < kDtypes, "no such element type");
  return kRows[index];
}

// Of a float whose exponent is all ones: infinite or not a number. The mask is that exponent.
template <class Word>
uint64_t count_full_exponents(std::span<const std::byte> bytes, Word mask) {
  uint64_t count = 0;
  for (size_t at = 0; at + sizeof(Word) <= bytes.size(); at += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    count += (word & mask) == mask;
  }
  return count;
}

}  // namespace

std::string_view name_of(Dtype dtype) { return row(dtype).name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (size_t i = 0; i < kDtypes; ++i) {
    if (kRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

Bytes bytes_of(Dtype dtype) { return row(dtype).bytes; }

bool is_floating(Dtype dtype) { return row(dtype).name.find('F') != std::string_view::npos; }

std::optional<Bytes> bytes_of(Dtype dtype, std::span<const uint64_t> shape) {
  Bytes bytes = bytes_of(dtype);
  for (const uint64_t length : shape) {
    if (__builtin_mul_overflow(bytes, length, &bytes)) return std::nullopt;
  }
  return bytes;
}

uint64_t count_nonfinite(Dtype dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case Dtype::f8_e4m3:  // S1111111 is its only NaN, and it has no infinity
      return count_full_exponents<uint8_t>(bytes, 0x7F);
    case Dtype::f8_e5m2:
      return count_full_exponents<uint8_t>(bytes, 0x7C);
    case Dtype::f16:
      return count_full_exponents<uint16_t>(bytes, 0x7C00);
    case Dtype::bf16:
      return count_full_exponents<uint16_t>(bytes, 0x7F80);
    case Dtype::f32:
      return count_full_exponents<uint32_t>(bytes, 0x7F80'0000);
    case Dtype::f64:
      return count_full_exponents<uint64_t>(bytes, 0x7FF0'0000'0000'0000);
    default:
      return 0;
  }
}

}  // namespace bottomless
