#include "torch/shard/reduced_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <memory>
#include <utility>

#include "torch/intercept/managed.h"
#include "torch/runtime/compute_alone.h"

namespace bottomless {
namespace {

const at::Tensor& tensor_in(const ReducedTensor& reduced) {
  return *static_cast<const at::Tensor*>(reduced.tensor.get());
}

Result<void> add_piece(const at::Tensor& sum, bool first, Bytes at, std::span<std::byte> piece,
                       int ranks) {
  const auto element = static_cast<Bytes>(sum.element_size());
  const auto begin = static_cast<int64_t>(at / element);
  const auto count = static_cast<int64_t>(piece.size() / element);
  Result<PinnedRange> pinned = pin_range(sum, at, piece.size(), Access::write, "reduce gradients");
  if (!pinned.ok()) return std::move(pinned).error();
  const BypassGuard guard;  // it is pinned: no operator here is one of the program's
  at::Tensor into = sum.narrow(0, begin, count);
  const at::Tensor added = at::from_blob(piece.data(), {count}, sum.options());
  const double share = 1.0 / ranks;
  // No operator that makes a tensor, not even of one number: where all leave at once, that would be gone.
  if (first) std::memset(pinned.value().at, 0, piece.size());
  into.add_(added, share);
  return {};
}

}  // namespace

ReducedTensor as_reduced(at::Tensor tensor, Element element) {
  const Offered memory = offered(tensor, 0, element);
  return {memory, std::make_shared<at::Tensor>(std::move(tensor))};
}

std::vector<at::Tensor> tensors_of(const std::vector<ReducedTensor>& reduced) {
  std::vector<at::Tensor> tensors;
  for (const ReducedTensor& each : reduced)
    tensors.push_back(each.tensor != nullptr ? tensor_in(each) : at::Tensor());
  return tensors;
}

ReductionHooks reduction_of_tensors(std::vector<at::ScalarType> types, std::vector<Share> shares,
                                    int ranks) {
  return {.new_sum = [types = std::move(types),
                      shares = std::move(shares)](size_t parameter) -> Result<ReducedTensor> {
            Result<at::Tensor> made =
                new_managed(shares[parameter].bytes(), types[parameter], Kind::gradient);
            if (!made.ok()) return std::move(made).error();
            return as_reduced(std::move(made).value(), element_of(types[parameter]));
          },
          .add =
              [ranks](const ReducedTensor& sum, bool first, Bytes at, std::span<std::byte> piece) {
                return add_piece(tensor_in(sum), first, at, piece, ranks);
              },
          .prepare = &compute_alone};
}

}  // namespace bottomless
