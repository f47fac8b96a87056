#include "torch/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstring>

#include "torch/deferred.h"
#include "torch/errors.h"
#include "torch/interceptor.h"
#include "torch/process.h"

namespace bottomless {
namespace {

constexpr uint8_t kPriority = 100;

void release(void* address);

class ManagedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const SessionUse session = Process::get().sessions().use_current();
    if (!session || bytes == 0) return before_->allocate(bytes);
    intercept_on_this_thread();
    OperatorScope* scope = OperatorScope::current();
    Pins* pins = scope != nullptr ? scope->pins_of(*session) : nullptr;
    const std::string_view who =
        scope != nullptr ? scope->name() : "an allocation outside any operator";
    if (bytes >= session->least_managed() && !session->engine().too_small_to_manage(bytes)) {
      const Kind kind = scope != nullptr ? Kind::activation : Kind::other;
      Engine& engine = session->engine();
      Result<void*> address =
          with_room(engine, [&] { return engine.allocate(bytes, kind, pins, who); });
      if (!address.ok()) throw_error(address.error());
      return {address.value(), address.value(), &release, c10::Device(c10::kCPU)};
    }
    // The context must be the data pointer (raw_deallocate relies on it), so the size is asked of
    // malloc again later.
    void* address = before_->raw_allocate(bytes);
    if (Result<void> charged = session->engine().charge(malloc_usable_size(address), pins, who);
        !charged.ok()) {
      before_->raw_deallocate(address);
      throw_error(charged.error());
    }
    return {address, address, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  void install() {
    if (c10::Allocator* now = c10::GetAllocator(c10::kCPU); now != this) before_ = now;
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  void remove() {
    if (c10::GetAllocator(c10::kCPU) == this) c10::SetAllocator(c10::kCPU, before_, kPriority);
  }
  void release_small(void* address) {
    if (const SessionUse session = Process::get().sessions().use_current())
      session->engine().discharge(malloc_usable_size(address));
    before_->raw_deallocate(address);
  }

 private:
  c10::Allocator* before_ = nullptr;
};

ManagedAllocator& allocator() {
  static ManagedAllocator* const instance =
      new ManagedAllocator;  // NOLINT: storages refer to it until the very end
  return *instance;
}

void release(void* address) {
  Process& process = Process::get();
  Session* session = process.owner_of(address);
  if (session == nullptr) {
    if (address != nullptr) allocator().release_small(address);
    return;
  }
  if (process.in_forked_child())
    return;  // the child has a copy of the records and no threads: it manages nothing
  OperatorScope* scope = OperatorScope::current();
  session->engine().free(address, scope != nullptr ? scope->pins_of(*session) : nullptr);
}

}  // namespace

void install_allocator() { allocator().install(); }
void remove_allocator() { allocator().remove(); }

c10::DataPtr managed_data_ptr(void* address) {
  return {address, address, &release, c10::Device(c10::kCPU)};
}

c10::Allocator* default_cpu_allocator() {
  return Process::get().sessions().has_current() ? &allocator() : c10::GetDefaultCPUAllocator();
}

}  // namespace bottomless
