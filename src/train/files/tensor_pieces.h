// A tensor of any size, worked on piece by piece, each in memory only meanwhile.
// Thread-safety: one thread at a time for one tensor.
#pragma once
#include <ATen/core/Tensor.h>
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/access.h"

namespace bottomless::train {

inline constexpr int64_t kPieceElements = int64_t{1} << 20;  // of every piece but the last

// Calls `work` for elements [first, first + piece.numel()) of a contiguous tensor, in order, up to the first error. `piece`
// shares the tensor's memory, has one dimension, and is valid during the call. `who` begins an error.
Result<void> in_pieces(
    const at::Tensor& tensor, Access access, std::string_view who,
    const std::function<Result<void>(int64_t first, const at::Tensor& piece)>& work);

// Where a piece is in another type than its tensor. Not torch's memory: nobody would pin that beside operators.
class Staging {
 public:
  // One dimension, with arbitrary content; valid until the next call.
  at::Tensor take(at::ScalarType type, int64_t elements);

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace bottomless::train
