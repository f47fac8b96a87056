#include "torch/intercept/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "torch/intercept/deferred.h"
#include "torch/intercept/interceptor.h"
#include "torch/runtime/process.h"

namespace bottomless {
namespace {

constexpr int64_t kVector = 256;  // elements; a multiple of every vector loop of ATen's kernels
constexpr int64_t kGrain =
    at::internal::GRAIN_SIZE;       // below it ATen does not divide work over threads
constexpr int64_t kSerial = 16384;  // gelu divides work from 24,577 elements on, all others later
constexpr Bytes kShareOfLimit = 8;  // an operator may use an eighth of the limit before it is cut

template <class Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, visit);
  }
}

// The one shape that all large tensors of the operator share, if they do and are dense.
struct Common {
  at::Tensor model;
  Bytes bytes = 0;
};

std::optional<Common> common_shape(const torch::jit::Stack& stack, const OperatorInfo& info) {
  Common common;
  bool alike = true;
  int64_t dimensions = 0;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (info.per_block[i]) continue;
    each_tensor(stack[i], [&](const at::Tensor& tensor) {
      dimensions = std::max(dimensions, tensor.dim());
      if (tensor.numel() <= 1) return;  // a step counter, a scale: the same for every tile
      if (!tensor.has_storage() || !tensor.is_non_overlapping_and_dense()) alike = false;
      if (!alike) return;
      if (!common.model.defined()) common.model = tensor;
      alike = tensor.sizes() == common.model.sizes() && tensor.strides() == common.model.strides();
      common.bytes += tensor.nbytes();
    });
  }
  // A single element with more dimensions than the others gives them to the result.
  if (!alike || !common.model.defined() || common.model.dim() != dimensions) return std::nullopt;
  return common;
}

at::Tensor tile_of(const at::Tensor& tensor, int64_t from, int64_t to) {
  // A single element stays, but must not give its dimensions to the tile's result.
  if (tensor.numel() <= 1 && tensor.dim() <= 1) return tensor;
  if (tensor.numel() == 1) return at::as_strided(tensor, {1}, {1}, tensor.storage_offset());
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

torch::jit::Stack tile_of(const torch::jit::Stack& arguments, const OperatorInfo& info,
                          int64_t from, int64_t to) {
  const at::AutoDispatchBelowADInplaceOrView plain_views;
  torch::jit::Stack tile;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool per_block = i < info.per_block.size() && info.per_block[i];
    tile.push_back(per_block ? tile_of(arguments[i], from / kVector, (to + kVector - 1) / kVector)
                             : tile_of(arguments[i], from, to));
  }
  return tile;
}

// The least limit that one of the operator's tensors lives under. One that was closed still holds
// for the tensors made inside it; results will live under the one in force.
Bytes least_limit(at::ArrayRef<c10::IValue> arguments) {
  Process& process = Process::get();
  Bytes least = process.sessions().current_limit();
  for (const c10::IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      c10::StorageImpl* storage =
          tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
      const Session* owner = process.owner_of(storage->_mutable_data_ptr_no_checks().get());
      if (owner != nullptr) least = std::min(least, owner->memory());
    });
  }
  return least;
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
  for (int64_t begin = 0; begin < elements; begin += part) {
    const int64_t end = std::min(begin + part, elements);
    int64_t at = begin;
    for (; end - at >= tile; at += tile) ends.push_back(at + tile);
    // What remains of the part runs on one thread each, so that its tail stays at the very end.
    for (; end - at > kSerial; at += kSerial) ends.push_back(at + kSerial);
    if (at < end) ends.push_back(end);
  }
  return ends;
}

namespace {

// A result for an element-wise operator, nothing of it resident yet. What type it has is asked of
// the operator itself.
at::Tensor new_result(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      const OperatorInfo& info, const torch::jit::Stack& arguments,
                      const Common& common) {
  torch::jit::Stack probe = tile_of(arguments, info, 0, 1);
  run_pinned(op, keys, info, &probe);
  const at::AutoDispatchBelowADInplaceOrView plain_allocation;
  return at::empty_strided(common.model.sizes(), common.model.strides(),
                           common.model.options().dtype(probe.front().toTensor().scalar_type()));
}

// clone() can be told which strides its result shall have.
bool keeps_strides(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                   const Common& common) {
  const std::optional<int> at = op.schema().argumentIndexWithName("memory_format");
  if (!at || arguments[*at].isNone()) return true;
  const c10::MemoryFormat format = arguments[*at].toMemoryFormat();
  return format == c10::MemoryFormat::Preserve ||
         (format == c10::MemoryFormat::Contiguous && common.model.is_contiguous());
}

void run_tiles(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               const torch::jit::Stack& arguments, const Common& common) {
  const OperatorInfo& info = OperatorInfo::of(op);
  const int64_t elements = common.model.numel();
  // Two thirds of the share: a tile's ends lie inside blocks, which become resident as a whole.
  const auto bytes_per_element = std::max<Bytes>(common.bytes / static_cast<Bytes>(elements), 1);
  const auto most =
      static_cast<int64_t>(least_limit(arguments) / kShareOfLimit / bytes_per_element * 2 / 3);
  // The fused kernels divide whole cache lines over the threads: their only tail is at the very end.
  // Ours may be cut at any block.
  const bool uncut = info.ours || info.name.starts_with("aten::_fused_");
  const int64_t threads = uncut ? 1 : at::get_num_threads();
  int64_t from = 0;
  for (const int64_t to : tile_ends(elements, threads, most)) {
    torch::jit::Stack tile = tile_of(arguments, info, from, to);
    if (!defer(op, keys, info, tile)) run_pinned(op, keys, info, &tile);
    from = to;
  }
}

}  // namespace

bool fits_as_a_whole(const OperatorInfo& info, const torch::jit::Stack& stack) {
  Bytes total = 0;
  const auto arguments = torch::jit::last(stack, info.writes.size());
  for (const c10::IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      total += tensor.has_storage() ? tensor.nbytes() : 0;
    });
  }
  return total <= least_limit(arguments) / kShareOfLimit;
}

bool run_in_tiles(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
                  torch::jit::Stack* stack) {
  if (info.tiling == Tiling::none || fits_as_a_whole(info, *stack)) return false;
  const size_t count = info.writes.size();
  torch::jit::Stack arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  std::optional<Common> common = common_shape(arguments, info);
  if (!common || !keeps_strides(op, arguments, *common)) return false;
  if (info.by_layout && !common->model.is_contiguous()) return false;
  if (info.tiling == Tiling::pointwise_new) {
    arguments.emplace_back(new_result(op, keys, info, arguments, *common));
    common->bytes += arguments.back().toTensor().nbytes();
    run_tiles(*info.out_variant, keys, arguments, *common);
    torch::jit::drop(*stack, count);
    stack->push_back(arguments.back());
    return true;
  }
  run_tiles(op, keys, arguments, *common);
  // An in-place operator returns the tensor it was given, if anything.
  torch::jit::drop(*stack, count);
  if (!op.schema().returns().empty()) stack->push_back(arguments.front());
  return true;
}

}  // namespace bottomless
