// The element types that parameters and optimizer states may have, in files and in memory.
#pragma once
#include <c10/core/ScalarType.h>

#include <optional>

#include "checkpoint/dtype.h"

namespace bottomless::train {

inline std::optional<at::ScalarType> scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::f16:
      return at::kHalf;
    case Dtype::f64:
      return at::kDouble;
    case Dtype::i8:
      return at::kChar;
    case Dtype::u8:
      return at::kByte;
    default:
      return std::nullopt;
  }
}

inline std::optional<Dtype> file_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::f32;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kHalf:
      return Dtype::f16;
    case at::kDouble:
      return Dtype::f64;
    case at::kChar:
      return Dtype::i8;
    case at::kByte:
      return Dtype::u8;
    default:
      return std::nullopt;
  }
}

}  // namespace bottomless::train
