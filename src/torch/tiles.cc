#include "torch/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "torch/interceptor.h"
#include "torch/process.h"

namespace bottomless {
namespace {

constexpr int64_t kVector = 256;  // elements; a multiple of every vector loop of ATen's kernels
constexpr int64_t kGrain =
    at::internal::GRAIN_SIZE;       // below it ATen does not divide work over threads
constexpr Bytes kShareOfLimit = 8;  // an operator may use an eighth of the limit before it is cut

template <class Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) visit(tensor);
    }
  }
}

// The one shape that all large tensors of the operator share, if they do and are dense.
struct Common {
  at::Tensor model;
  Bytes bytes = 0;
};

std::optional<Common> common_shape(const torch::jit::Stack& stack) {
  Common common;
  bool alike = true;
  for (const c10::IValue& value : stack) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.numel() <= 1) return;  // a step counter, a scale: the same for every tile
      if (!tensor.has_storage() || !tensor.is_non_overlapping_and_dense()) alike = false;
      if (!alike) return;
      if (!common.model.defined()) common.model = tensor;
      alike = tensor.sizes() == common.model.sizes() && tensor.strides() == common.model.strides();
      common.bytes += tensor.nbytes();
    });
  }
  if (!alike || !common.model.defined()) return std::nullopt;
  return common;
}

at::Tensor tile_of(const at::Tensor& tensor, int64_t from, int64_t to) {
  if (tensor.numel() <= 1) return tensor;
  return at::as_strided(tensor, {to - from}, {1}, tensor.storage_offset() + from);
}

c10::IValue tile_of(const c10::IValue& value, int64_t from, int64_t to) {
  if (value.isTensor() && value.toTensor().defined()) return tile_of(value.toTensor(), from, to);
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> tiles;
  for (const at::Tensor& tensor : value.toTensorVector())
    tiles.push_back(tile_of(tensor, from, to));
  return tiles;
}

Bytes limit() {
  Session* session = Process::get().current();
  return session == nullptr ? ~Bytes{0} : session->memory();
}

}  // namespace

std::vector<int64_t> tile_ends(int64_t elements, int64_t threads, int64_t most) {
  std::vector<int64_t> ends;
  // What ATen does with the uncut range.
  const int64_t parts = elements < kGrain ? 1 : std::min(threads, (elements + kGrain - 1) / kGrain);
  const int64_t part = (elements + parts - 1) / parts;
  // A whole tile is again divided over all threads, into pieces without a tail.
  const int64_t even = kVector * threads;
  const int64_t tile = std::max(most, threads * kGrain) / even * even;
  const int64_t serial = (kGrain - 1) / kVector * kVector;
  for (int64_t begin = 0; begin < elements; begin += part) {
    const int64_t end = std::min(begin + part, elements);
    int64_t at = begin;
    for (; end - at >= tile; at += tile) ends.push_back(at + tile);
    // What remains of the part runs on one thread each, so that its tail stays at the very end.
    for (; end - at > serial; at += serial) ends.push_back(at + serial);
    if (at < end) ends.push_back(end);
  }
  return ends;
}

bool fits_as_a_whole(const OperatorInfo& info, const torch::jit::Stack& stack) {
  Bytes total = 0;
  for (const c10::IValue& value : torch::jit::last(stack, info.writes.size())) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      total += tensor.has_storage() ? tensor.nbytes() : 0;
    });
  }
  return total <= limit() / kShareOfLimit;
}

bool run_in_tiles(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
                  torch::jit::Stack* stack) {
  if (info.tiling == Tiling::none || fits_as_a_whole(info, *stack)) return false;
  const size_t count = info.writes.size();
  const torch::jit::Stack arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  const std::optional<Common> common = common_shape(arguments);
  if (!common) return false;
  const int64_t elements = common->model.numel();
  // Two thirds of the share: a tile's ends lie inside blocks, which become resident as a whole.
  const auto bytes_per_element = std::max<Bytes>(common->bytes / static_cast<Bytes>(elements), 1);
  const auto most = static_cast<int64_t>(limit() / kShareOfLimit / bytes_per_element * 2 / 3);
  const std::vector<int64_t> ends = tile_ends(elements, at::get_num_threads(), most);
  int64_t from = 0;
  for (const int64_t to : ends) {
    torch::jit::Stack tile;
    {
      const at::AutoDispatchBelowADInplaceOrView plain_views;
      for (const c10::IValue& argument : arguments) tile.push_back(tile_of(argument, from, to));
    }
    run_pinned(op, keys, info, &tile);
    from = to;
  }
  // An in-place operator returns the tensor it was given, if anything.
  torch::jit::drop(*stack, count);
  if (!op.schema().returns().empty()) stack->push_back(arguments.front());
  return true;
}

}  // namespace bottomless
