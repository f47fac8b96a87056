#include "torch/intercept/managed.h"

#include <ATen/ops/empty.h>

#include "torch/errors.h"
#include "torch/intercept/allocator.h"
#include "torch/runtime/process.h"

namespace bottomless {

at::Tensor tensor_on(void* address, Bytes bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
                     at::ScalarType type) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, managed_data_ptr(address),
                       default_cpu_allocator(), /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

Result<at::Tensor> new_managed(Bytes bytes, at::ScalarType type, Kind kind) {
  const SessionUse session = Process::get().sessions().use_current();
  const auto count = static_cast<int64_t>(bytes / c10::elementSize(type));
  if (!session || bytes < session->least_managed()) {
    try {
      const BypassGuard guard;
      return at::empty({count}, at::TensorOptions(type));
    } catch (const c10::Error& error) {
      return caught(error);
    }
  }
  Engine& engine = session->engine();
  Result<void*> address = engine.allocate(bytes, kind, nullptr, "an allocation beside operators");
  if (!address.ok()) return std::move(address).error();
  return tensor_on(address.value(), bytes, {count}, {1}, type);
}

Engine* engine_of(const at::Tensor& tensor) {
  Session* session = Process::get().owner_of(tensor.storage().data());
  return session == nullptr ? nullptr : &session->engine();
}

Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Element::float32;
    case at::kBFloat16:
      return Element::bfloat16;
    case at::kHalf:
      return Element::float16;
    default:
      return Element::bytes;
  }
}

Offered offered(const at::Tensor& tensor, Bytes first, Element element) {
  return {.engine = engine_of(tensor),
          .address = static_cast<const std::byte*>(tensor.storage().data()) +
                     static_cast<Bytes>(tensor.storage_offset()) * tensor.element_size(),
          .first = first,
          .bytes = tensor.nbytes(),
          .element = element};
}

Need need_of(const at::Tensor& tensor, Access access) {
  const Offered all = offered(tensor, 0, Element::bytes);
  return {.address = all.address, .bytes = all.bytes, .access = access};
}

void end_announced_use(const at::Tensor& tensor) {
  if (Engine* engine = engine_of(tensor)) engine->end_announced_use(need_of(tensor, Access::read));
}

Result<PinnedRange> pin_range(const at::Tensor& tensor, Bytes begin, Bytes bytes, Access access,
                              std::string_view who) {
  auto* at = static_cast<std::byte*>(
                 tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()) +
             static_cast<Bytes>(tensor.storage_offset()) * tensor.element_size() + begin;
  Engine* engine = engine_of(tensor);
  PinnedRange range{.pins = nullptr, .at = at};
  if (engine == nullptr || bytes == 0) return range;
  range.pins = std::make_unique<Pins>(*engine);
  const Need need{.address = at, .bytes = bytes, .access = access};
  if (Result<void> pinned = engine->pin_untraced(*range.pins, {&need, 1}, who); !pinned.ok())
    return std::move(pinned).error();
  return range;
}

BypassGuard::BypassGuard()
    : not_intercepted_(c10::DispatchKey::Fake),
      not_recorded_(c10::autograd_dispatch_keyset_with_ADInplaceOrView),
      alone_(true) {}

}  // namespace bottomless
