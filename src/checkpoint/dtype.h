// The element types of safetensors, and tensors as somebody declares them.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless {

enum class Dtype : uint8_t {
  boolean,
  u8,
  i8,
  f8_e4m3,  // finite only, with one NaN, as torch.float8_e4m3fn
  f8_e5m2,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
};
inline constexpr size_t kDtypes = 15;

std::string_view name_of(Dtype dtype);  // as in a header: "BF16"
std::optional<Dtype> dtype_named(std::string_view name);
Bytes bytes_of(Dtype dtype);  // of one element
bool is_floating(Dtype dtype);

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<uint64_t> shape;  // empty: one element
  bool operator==(const TensorSpec&) const = default;
};

// The product of shape and element size; nothing if that has no place in 64 bits.
std::optional<Bytes> bytes_of(Dtype dtype, std::span<const uint64_t> shape);

// How many of the elements are infinite or not a number. `bytes` holds whole elements; of an integer type none is.
uint64_t count_nonfinite(Dtype dtype, std::span<const std::byte> bytes);

}  // namespace bottomless
