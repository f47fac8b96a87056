#include "torch/intercept/collectives.h"

#include <torch/custom_class.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "torch/intercept/interceptor.h"

namespace bottomless {
namespace {

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
  OperatorScope scope(info.name, OperatorScope::Allocations::resident);
  for (const c10::IValue& argument : torch::jit::last(*stack, info.writes.size()))
    scope.add(argument, Access::write);  // their schemas do not say which tensors are written
  scope.pin();
  call_kernel(op, keys, stack);
  std::shared_ptr<void> pins;
  const size_t results = op.schema().returns().size();
  for (const c10::IValue& result : torch::jit::last(*stack, results)) {
    if (!result.isCustomClass()) continue;
    if (pins == nullptr) pins = scope.detach_pins();
    release_when_done(result.toCustomClass<c10d::Work>(), pins);
  }
}

}  // namespace bottomless
