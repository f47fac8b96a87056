#include "torch/intercept/interceptor.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <atomic>

#include "os/system_calls.h"
#include "torch/errors.h"
#include "torch/intercept/collectives.h"
#include "torch/intercept/deferred.h"
#include "torch/intercept/list_operators.h"
#include "torch/intercept/square_sums.h"
#include "torch/intercept/tiles.h"
#include "torch/runtime/process.h"

namespace bottomless {
namespace {

// No backend and no mode of torch 2.13 uses this key for CPU tensors, it sits below autograd and
// Python's modes and right above the kernels, and it can be switched on per thread without touching
// any tensor.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

// The dispatcher calls a function without state: what it is within is the thread's.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
constinit thread_local OperatorScope* t_current = nullptr;
// Names live as long as the process. Relaxed: nothing is read through it but the name.
std::atomic<const char*> latest_name{""};

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

// An operator on single tensors that returns the one it updates.
bool put_off(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
             torch::jit::Stack* stack) {
  const auto first = stack->end() - static_cast<ptrdiff_t>(info.writes.size());
  if (!first->isTensor() || op.schema().returns().size() != 1) return false;
  if (!defer(op, keys, info, {first, stack->end()})) return false;
  torch::jit::drop(*stack, info.writes.size() - 1);  // what remains is the first argument
  return true;
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Process& process = Process::get();
  if (!process.active() || process.in_forked_child()) {
    op.redispatchBoxed(below(keys), stack);
    return;
  }
  notice_new_libraries();
  const OperatorInfo& info = OperatorInfo::of(op);
  switch (info.handling) {
    case Handling::each:
      if (fits_as_a_whole(info, *stack)) break;
      [[fallthrough]];
    case Handling::passed_by: {
      const OperatorScope scope(info.name, OperatorScope::Allocations::lazy);
      op.redispatchBoxed(below(keys), stack);  // operators that it calls come here again
      return;
    }
    case Handling::list:
      if (run_list_operator(op, keys, info, stack)) return;
      break;
    case Handling::square_sum:
      if (run_square_sum(op, keys, info, stack)) return;
      break;
    case Handling::collective:
      run_collective(op, keys, info, stack);
      return;
    case Handling::pinned:
      break;
  }
  if (info.tiling != Tiling::none && run_in_tiles(op, keys, info, stack)) return;
  if (info.deferrable && put_off(op, keys, info, stack)) return;
  run_pinned(op, keys, info, stack);
}

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

// The bytes from the first to the last element, for strides of any kind.
Bytes span_of(const c10::TensorImpl& tensor) {
  if (tensor.is_contiguous()) return static_cast<Bytes>(tensor.numel()) * tensor.itemsize();
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return static_cast<Bytes>(last + 1) * tensor.itemsize();
}

}  // namespace

void intercept_on_this_thread() {
  if (!c10::impl::tls_is_dispatch_key_included(kKey))
    c10::impl::tls_set_dispatch_key_included(kKey, true);
}

OperatorScope::OperatorScope(std::string_view name, Allocations allocations)
    : name_(name), allocations_(allocations), outer_(t_current) {
  t_current = this;
  latest_name.store(name.data(), std::memory_order_relaxed);
}

const char* OperatorScope::latest() { return latest_name.load(std::memory_order_relaxed); }

OperatorScope::~OperatorScope() { t_current = outer_; }

OperatorScope* OperatorScope::current() { return t_current; }

OperatorScope::PerSession& OperatorScope::of(Session& session) {
  for (PerSession& known : sessions_) {
    if (known.session.get() == &session) return known;
  }
  return sessions_.emplace_back(Process::get().sessions().use(session));
}

unsigned OperatorScope::holding(const Engine& engine) const {
  unsigned count = outer_ != nullptr ? outer_->holding(engine) : 0;
  for (const PerSession& known : sessions_) {
    if (&known.session->engine() == &engine && known.pins != nullptr && !known.pins->empty())
      ++count;
  }
  return count;
}

Pins* OperatorScope::pins_of(Session& session) {
  return allocations_ == Allocations::lazy ? nullptr : of(session).pins.get();
}

void OperatorScope::add(const at::Tensor& tensor, Access access, bool overwritten) {
  if (!tensor.defined()) return;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!impl.has_storage()) {
    // A sparse tensor is two or three dense ones in a trench coat.
    if (tensor.layout() == at::kSparse) {
      const auto& sparse = static_cast<const at::SparseTensorImpl&>(impl);
      add(sparse.indices(), access);
      add(sparse.values(), access);
    } else if (tensor.layout() == at::kSparseCsr || tensor.layout() == at::kSparseCsc ||
               tensor.layout() == at::kSparseBsr || tensor.layout() == at::kSparseBsc) {
      const auto& sparse = static_cast<const at::SparseCsrTensorImpl&>(impl);
      add(sparse.compressed_indices(), access);
      add(sparse.plain_indices(), access);
      add(sparse.values(), access);
    }
    return;
  }
  if (impl.numel() == 0) return;
  c10::StorageImpl* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  auto* base = static_cast<std::byte*>(storage->_mutable_data_ptr_no_checks().get());
  if (base == nullptr) return;
  Session* session = Process::get().owner_of(base);
  if (session == nullptr) return;
  const std::byte* first = base + static_cast<Bytes>(impl.storage_offset()) * impl.itemsize();
  of(*session).needs.push_back({.address = first,
                                .bytes = span_of(impl),
                                .access = access,
                                .overwritten = overwritten && impl.is_non_overlapping_and_dense()});
}

void OperatorScope::add(const c10::IValue& value, Access access, bool overwritten) {
  if (value.isTensor()) {
    add(value.toTensor(), access, overwritten);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) add(element, access);
  }
}

void OperatorScope::pin() {
  for (PerSession& known : sessions_) {
    if (known.needs.empty()) continue;
    Engine& engine = known.session->engine();
    const std::span<const Need> needs{known.needs.data(), known.needs.size()};
    const auto attempt = [&] { return engine.pin(*known.pins, needs, name_); };
    Result<void> pinned = with_room(engine, attempt);
    // What was deferred may hold the room that is missing.
    if (!pinned.ok() && engine.flush_deferred().ok()) pinned = attempt();
    if (!pinned.ok()) throw_operator_error(pinned.error());
  }
}

void OperatorScope::done() {
  for (PerSession& known : sessions_) known.pins->done();
}

std::shared_ptr<void> OperatorScope::detach_pins() {
  auto kept = std::make_shared<std::vector<std::unique_ptr<Pins>>>();
  for (PerSession& known : sessions_) kept->push_back(std::move(known.pins));
  sessions_.clear();
  return kept;
}

void call_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard nested_operators_run_inside(kKey);
  op.redispatchBoxed(below(keys), stack);
}

void run_pinned(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
                torch::jit::Stack* stack) {
  OperatorScope scope(info.name, OperatorScope::Allocations::resident);
  const auto arguments = torch::jit::last(*stack, info.writes.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    scope.add(arguments[i], info.writes_to(i, arguments) ? Access::write : Access::read,
              info.overwrites[i]);
  }
  scope.pin();
  call_kernel(op, keys, stack);
  scope.done();
}

}  // namespace bottomless
