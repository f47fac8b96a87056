#include "train/files/tensor_pieces.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/check.h"
#include "torch/intercept/managed.h"

namespace bottomless::train {

Result<void> in_pieces(
    const at::Tensor& tensor, Access access, std::string_view who,
    const std::function<Result<void>(int64_t first, const at::Tensor& piece)>& work) {
  BOTTOMLESS_CHECK(tensor.is_contiguous(), "pieces follow each other in memory");
  const auto element = static_cast<Bytes>(tensor.element_size());
  for (int64_t first = 0; first < tensor.numel(); first += kPieceElements) {
    const int64_t count = std::min(kPieceElements, tensor.numel() - first);
    Result<PinnedRange> range = pin_range(tensor, static_cast<Bytes>(first) * element,
                                          static_cast<Bytes>(count) * element, access, who);
    if (!range.ok()) return range.error();
    const BypassGuard guard;
    const Result<void> done =
        work(first, at::from_blob(range.value().at, {count}, at::TensorOptions(tensor.dtype())));
    if (!done.ok()) return done.error();
  }
  return {};
}

at::Tensor Staging::take(at::ScalarType type, int64_t elements) {
  bytes_.resize(static_cast<size_t>(elements) * c10::elementSize(type));
  return at::from_blob(bytes_.data(), {elements}, at::TensorOptions(type));
}

}  // namespace bottomless::train
