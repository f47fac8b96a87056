// Element types of tensors and of checkpoints.
// Thread-safety: free functions without state.
#pragma once
#include <c10/core/ScalarType.h>

#include <array>
#include <optional>
#include <utility>

#include "checkpoint/dtype.h"

namespace bottomless {

inline constexpr std::array<std::pair<Dtype, at::ScalarType>, kDtypes> kTypes = {{
    {Dtype::boolean, at::kBool},
    {Dtype::u8, at::kByte},
    {Dtype::i8, at::kChar},
    {Dtype::f8_e4m3, at::kFloat8_e4m3fn},
    {Dtype::f8_e5m2, at::kFloat8_e5m2},
    {Dtype::i16, at::kShort},
    {Dtype::u16, at::kUInt16},
    {Dtype::f16, at::kHalf},
    {Dtype::bf16, at::kBFloat16},
    {Dtype::i32, at::kInt},
    {Dtype::u32, at::kUInt32},
    {Dtype::f32, at::kFloat},
    {Dtype::i64, at::kLong},
    {Dtype::u64, at::kUInt64},
    {Dtype::f64, at::kDouble},
}};

inline at::ScalarType scalar_type_of(Dtype dtype) {
  return kTypes[static_cast<size_t>(dtype)].second;
}
// Nothing where safetensors has no such type.
inline std::optional<Dtype> dtype_of(at::ScalarType type) {
  for (const auto& [dtype, its] : kTypes) {
    if (its == type) return dtype;
  }
  return std::nullopt;
}

}  // namespace bottomless
