// Sees every operator below autograd, after composite operators have been decomposed, on every
// thread that has the dispatch key: makes resident what the operator reads and writes, keeps it
// and what the operator allocates until it ends, and takes list operators apart.
// Thread-safety: per thread; autograd's threads inherit the key, other threads get it at their
// first allocation.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <string_view>

#include "engine/engine.h"
#include "torch/intercept/operator_info.h"
#include "torch/runtime/session.h"

namespace bottomless {

// Switches the interceptor on for the calling thread. Cheap when it is on already.
void intercept_on_this_thread();

// The operator that runs on this thread: its pins, and what the allocator must know of it.
class OperatorScope {
 public:
  enum class Allocations {
    resident,
    lazy
  };  // lazy: nothing is touched before the operator returns

  OperatorScope(std::string_view name, Allocations allocations);
  ~OperatorScope();
  OperatorScope(const OperatorScope&) = delete;
  OperatorScope& operator=(const OperatorScope&) = delete;

  // May be asked by the handler of a fault. The loader may allocate it for the thread then: one
  // that accesses a tensor's memory is not amid an allocation.
  static OperatorScope* current();
  // The operator that began last, on whatever thread; for people.
  static const char* latest();

  std::string_view name() const { return name_; }
  // Pins in that engine that this operator and those around it hold. Asked by a service thread,
  // while the operator's own waits for it.
  unsigned holding(const Engine& engine) const;
  // Where allocations and frees of this operator in `session` are pinned; null while allocations
  // are lazy.
  Pins* pins_of(Session& session);
  // Notes a tensor that the operator is going to touch; pin() then brings in all that were noted.
  void add(const at::Tensor& tensor, Access access, bool overwritten = false);
  void add(const c10::IValue& value, Access access, bool overwritten = false);
  void pin();
  // The operator has returned and not thrown: what it was to overwrite is overwritten.
  void done();
  // Hands the pins over, to be kept past the end of the operator.
  std::shared_ptr<void> detach_pins();

 private:
  struct PerSession {
    explicit PerSession(SessionUse used)
        : session(std::move(used)), pins(std::make_unique<Pins>(session->engine())) {}
    SessionUse session;  // before the pins: it goes after them
    std::unique_ptr<Pins> pins;
    c10::SmallVector<Need, 8> needs;
  };
  PerSession& of(Session& session);

  std::string_view name_;
  Allocations allocations_;
  OperatorScope* outer_;
  c10::SmallVector<PerSession, 1> sessions_;
};

// Runs the kernel below the interceptor; operators that it calls in turn run inside the same pins.
void call_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Runs an operator with everything pinned, its allocations included. Nested operators run inside
// these pins.
void run_pinned(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const OperatorInfo& info,
                torch::jit::Stack* stack);

}  // namespace bottomless
