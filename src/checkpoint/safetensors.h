// The format of Hugging Face's safetensors, which docs/checkpoints.md describes byte by byte: 8 bytes of length, a header
// in JSON, the tensors' bytes. Here is what can be said of it without a file.
// Thread-safety: free functions without state, and values.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dtype.h"

namespace bottomless {

using Metadata = std::map<std::string, std::string>;

struct PlacedTensor : TensorSpec {
  Bytes offset = 0;  // in the file
  Bytes bytes = 0;
  bool operator==(const PlacedTensor&) const = default;
};

struct TensorLayout {
  std::vector<PlacedTensor> tensors;  // in the order of their offsets; nothing between them
  Metadata metadata;
  Bytes data_offset = 0;  // where the first begins: the length of all that is before it
  Bytes file_bytes = 0;   // where the last ends
  bool operator==(const TensorLayout&) const = default;
};

inline constexpr Bytes kLengthBytes = 8;                // in front of the header
inline constexpr Bytes kMostHeaderBytes = 100'000'000;  // as in the original

// How long the header is that follows these bytes, in a file of `file_bytes`. `where` names the file in an error.
Result<Bytes> header_length(const std::array<std::byte, kLengthBytes>& start, Bytes file_bytes,
                            std::string_view where);

// Reads a header. What it returns is sound: names are unique, offsets lie in the file, tensors follow each other without
// gap or overlap up to its end, and each has the bytes of its shape. Else Code::corrupt; Code::unsupported for an element
// type that this version does not know.
Result<TensorLayout> parse_header(std::string_view header, Bytes file_bytes,
                                  std::string_view where);

struct NewHeader {
  std::string start;  // the file's first data_offset bytes
  TensorLayout layout;
};

// Places the tensors: those of wide elements first, so that each is aligned to its elements, else in the order given.
// Code::invalid_argument for what parse_header() would refuse.
Result<NewHeader> make_header(std::vector<TensorSpec> tensors, Metadata metadata,
                              std::string_view where);

}  // namespace bottomless
