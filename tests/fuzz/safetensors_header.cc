// The header of a safetensors file that came from anywhere. The input is 8 bytes that say how many bytes of tensors follow
// the header, and the header.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace {

using bottomless::Bytes;
using bottomless::PlacedTensor;
using bottomless::Result;
using bottomless::TensorLayout;

void check_sound(const TensorLayout& layout) {
  Bytes end = layout.data_offset;
  for (const PlacedTensor& tensor : layout.tensors) {
    BOTTOMLESS_CHECK(tensor.offset == end, "a gap or an overlap");
    BOTTOMLESS_CHECK(bottomless::bytes_of(tensor.dtype, tensor.shape) == tensor.bytes,
                     "bytes that are not those of the shape");
    end += tensor.bytes;
  }
  BOTTOMLESS_CHECK(end == layout.file_bytes, "tensors that end before the file, or behind it");
}

std::vector<bottomless::TensorSpec> sorted_specs(const TensorLayout& layout) {
  std::vector<bottomless::TensorSpec> specs(layout.tensors.begin(), layout.tensors.end());
  std::sort(specs.begin(), specs.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return specs;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::array<std::byte, bottomless::kLengthBytes> start{};
  if (size < start.size()) return 0;
  std::memcpy(start.data(), data, start.size());
  uint64_t number = 0;
  for (size_t i = start.size(); i-- > 0;) number = number << 8 | data[i];
  const std::string_view header(reinterpret_cast<const char*>(data) + start.size(),
                                size - start.size());

  const Result<Bytes> length = bottomless::header_length(start, size, "fuzz");
  BOTTOMLESS_CHECK(!length.ok() || length.value() <= header.size(), "a header behind the end");
  Bytes file_bytes = 0;
  if (__builtin_add_overflow(Bytes{size}, number, &file_bytes)) return 0;
  const Result<TensorLayout> layout = bottomless::parse_header(header, file_bytes, "fuzz");
  if (!layout.ok()) {
    BOTTOMLESS_CHECK(!layout.error().message.empty(), "an error without a reason");
    return 0;
  }
  check_sound(layout.value());

  // What can be read can be written, and then says the same.
  if (file_bytes >> 62 != 0) return 0;
  const auto made =
      bottomless::make_header(sorted_specs(layout.value()), layout.value().metadata, "fuzz");
  BOTTOMLESS_CHECK(made.ok(), "a header that was read cannot be written");
  check_sound(made.value().layout);
  const Result<TensorLayout> again = bottomless::parse_header(
      std::string_view(made.value().start).substr(bottomless::kLengthBytes),
      made.value().layout.file_bytes, "fuzz");
  BOTTOMLESS_CHECK(again.ok(), "a header that was written cannot be read");
  BOTTOMLESS_CHECK(sorted_specs(again.value()) == sorted_specs(layout.value()),
                   "the tensors have changed");
  BOTTOMLESS_CHECK(again.value().metadata == layout.value().metadata, "metadata has changed");
  return 0;
}
