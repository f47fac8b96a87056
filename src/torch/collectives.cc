#include "torch/collectives.h"

#include <torch/custom_class.h>

#include <map>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/interceptor.h"

namespace bottomless {
namespace {

// Pins of functional collectives, by the storage of each result, until wait_tensor is called on it.
class Awaited {
 public:
  void keep(const at::Tensor& result, const std::shared_ptr<void>& pins) {
    const std::lock_guard lock(mutex_);
    pins_[key(result)] = pins;
  }
  void done(const at::Tensor& result) {
    std::shared_ptr<void> released;  // outside the lock
    const std::lock_guard lock(mutex_);
    if (auto found = pins_.extract(key(result))) released = std::move(found.mapped());
  }
  static Awaited& get() {
    static Awaited* const awaited =
        new Awaited;  // NOLINT: collectives may outlive static destructors
    return *awaited;
  }

 private:
  static const void* key(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }
  std::mutex mutex_;
  std::map<const void*, std::shared_ptr<void>> pins_;
};

void release_when_done(const c10::intrusive_ptr<c10d::Work>& work, std::shared_ptr<void> pins) {
  if (work->isCompleted()) return;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = work->getFuture();
  } catch (const c10::Error&) {
    // A send or a receive of Gloo, which says when it is done to nobody but who waits for it, and
    // may be waiting for what comes after it. Its tensors may leave, and come back when it touches
    // them.
    return;
  }
  future->addCallback([pins = std::move(pins)](c10::ivalue::Future&) mutable { pins.reset(); });
}

}  // namespace

void run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                    const OperatorInfo& info, torch::jit::Stack* stack) {
  constexpr std::string_view kWait = "_c10d_functional::wait_tensor";
  OperatorScope scope(info.name, OperatorScope::Allocations::resident);
  at::Tensor waited_for;
  for (const c10::IValue& argument : torch::jit::last(*stack, info.writes.size())) {
    if (info.name == kWait && argument.isTensor()) waited_for = argument.toTensor();
    scope.add(argument, Access::write);  // their schemas do not say which tensors are written
  }
  scope.pin();
  call_kernel(op, keys, stack);
  if (info.name == kWait) {
    Awaited::get().done(waited_for);
    return;
  }
  std::shared_ptr<void> pins;
  const size_t results = op.schema().returns().size();
  for (const c10::IValue& result : torch::jit::last(*stack, results)) {
    if (result.isCustomClass()) {
      if (pins == nullptr) pins = scope.detach_pins();
      release_when_done(result.toCustomClass<c10d::Work>(), pins);
    } else if (info.name.starts_with("_c10d_functional") && result.isTensor()) {
      if (pins == nullptr) pins = scope.detach_pins();
      Awaited::get().keep(result.toTensor(), pins);
    }
  }
}

}  // namespace bottomless
