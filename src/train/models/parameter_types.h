// The element types that parameters and optimizer states may have, in files and in memory.
// Thread-safety: free functions without state.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>

#include "checkpoint/dtype.h"
#include "torch/dtypes.h"

namespace bottomless::train {

constexpr bool is_parameter_type(Dtype dtype) {
  return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16 ||
         dtype == Dtype::f64 || dtype == Dtype::i8 || dtype == Dtype::u8;
}

inline std::optional<at::ScalarType> scalar_type(Dtype dtype) {
  return is_parameter_type(dtype) ? std::optional(scalar_type_of(dtype)) : std::nullopt;
}

inline std::optional<Dtype> file_dtype(at::ScalarType type) {
  const std::optional<Dtype> dtype = bottomless::dtype_of(type);
  return dtype && is_parameter_type(*dtype) ? dtype : std::nullopt;
}

}  // namespace bottomless::train
