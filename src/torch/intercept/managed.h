// Tensors on an engine's storages, for work beside the program's own operators.
// Thread-safety: free functions; a PinnedRange is its thread's own.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ParallelGuard.h>

#include <memory>
#include <optional>
#include <string_view>

#include "engine/engine.h"
#include "ranks/exchange.h"

namespace bottomless {

// A tensor that owns the storage at `address`, which an engine gave.
at::Tensor tensor_on(void* address, Bytes bytes, at::IntArrayRef sizes, at::IntArrayRef strides,
                     at::ScalarType type);
// One dimension, with arbitrary content, under the limit in force; small ones are torch's own.
Result<at::Tensor> new_managed(Bytes bytes, at::ScalarType type, Kind kind);
// The engine that manages its storage, or null.
Engine* engine_of(const at::Tensor& tensor);

// What others are to be given. The tensor fills its storage from the begin, or is no engine's.
Offered offered(const at::Tensor& tensor, Bytes first, Element element);
Element element_of(at::ScalarType type);

Need need_of(const at::Tensor& tensor, Access access);  // all of it
// Work that was announced to the engine is done with it.
void end_announced_use(const at::Tensor& tensor);

struct PinnedRange {
  std::unique_ptr<Pins> pins;  // null: the memory is no engine's
  std::byte* at = nullptr;
};
Result<PinnedRange> pin_range(const at::Tensor& tensor, Bytes begin, Bytes bytes, Access access,
                              std::string_view who);

// While it lives, operators of this thread run as they are, on what is pinned already, and on this thread alone.
class BypassGuard {
 public:
  BypassGuard();

 private:
  c10::impl::ExcludeDispatchKeyGuard not_intercepted_;
  c10::impl::ExcludeDispatchKeyGuard not_recorded_;
  c10::ParallelGuard alone_;
};

}  // namespace bottomless
