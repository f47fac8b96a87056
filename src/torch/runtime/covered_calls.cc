#include "torch/runtime/covered_calls.h"

#include <sys/uio.h>

#include <memory>
#include <span>
#include <vector>

#include "os/system_calls.h"
#include "torch/intercept/allocator.h"
#include "torch/intercept/interceptor.h"
#include "torch/runtime/process.h"
#include "torch/runtime/session.h"

namespace bottomless {
namespace {

// In signal handlers, too.
BufferOwner* owner_of_buffer(const void* address) {
  Process& process = Process::get();
  return process.active() ? process.owner_of(address) : nullptr;
}

bool is_forked_child() { return Process::get().in_forked_child(); }

}  // namespace

Result<std::shared_ptr<void>> Session::hold(std::span<const iovec> buffers, Access access) {
  Process& process = Process::get();
  if (process.in_forked_child()) {
    for (const iovec& buffer : buffers) {
      if (process.owner_of(buffer.iov_base) == this)
        process.touch_in_child(*this, buffer.iov_base, buffer.iov_len, access);
    }
    return std::shared_ptr<void>();
  }
  std::vector<Need> needs;
  for (const iovec& buffer : buffers) needs.push_back({buffer.iov_base, buffer.iov_len, access});
  OperatorScope* scope = OperatorScope::current();
  Pins* pins = scope != nullptr ? scope->pins_of(*this) : nullptr;
  std::shared_ptr<Pins> own;
  if (pins == nullptr) {
    own = std::make_shared<Pins>(engine());
    pins = own.get();
  }
  // Most come from threads of a network, whenever it likes: no part of a step that repeats.
  if (Result<void> pinned = engine().pin_untraced(*pins, needs, "a system call"); !pinned.ok())
    return std::move(pinned).error();
  return std::shared_ptr<void>(std::move(own));
}

void cover_calls_on_tensors() {
  const Redirection allocator{"_ZN3c1022GetDefaultCPUAllocatorEv",
                              reinterpret_cast<const void*>(&default_cpu_allocator)};
  cover_system_calls({.owner_of = &owner_of_buffer, .in_forked_child = &is_forked_child},
                     {&allocator, 1});
}

}  // namespace bottomless
