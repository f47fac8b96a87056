#include "torch/intercept/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "torch/errors.h"
#include "torch/intercept/deferred.h"
#include "torch/intercept/interceptor.h"
#include "torch/runtime/process.h"

namespace bottomless {
namespace {

constexpr uint8_t kPriority = 100;

void release(void* address);

// Which session a small storage is charged to. It lies at the end of the memory that malloc gave,
// whose size malloc is asked for: the context must be the data pointer, because raw_deallocate()
// relies on it. Memory that comes there without one, from before the limit, does not have the mark.
struct Charge {
  uint64_t mark;
  uint64_t session;
};

uint64_t mark_of(const void* address) {
  constexpr uint64_t kMark = 0x8d1c6a3f27b954e5;
  return kMark ^ reinterpret_cast<uintptr_t>(address);
}

std::byte* charge_of(void* address) {
  return static_cast<std::byte*>(address) + malloc_usable_size(address) - sizeof(Charge);
}

void write_charge(void* address, uint64_t session) {
  const Charge charge{mark_of(address), session};
  std::memcpy(charge_of(address), &charge, sizeof charge);
}

// Zero if there is none. Taken: what comes next to this address has none from the start.
uint64_t take_charge(void* address) {
  if (malloc_usable_size(address) < sizeof(Charge)) return 0;
  Charge charge{};
  std::memcpy(&charge, charge_of(address), sizeof charge);
  if (charge.mark != mark_of(address)) return 0;
  std::memset(charge_of(address), 0, sizeof charge);
  return charge.session;
}

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
      if (!address.ok()) throw_operator_error(address.error());
      return {address.value(), address.value(), &release, c10::Device(c10::kCPU)};
    }
    void* address = before_->raw_allocate(bytes + sizeof(Charge));
    if (Result<void> charged = session->engine().charge(malloc_usable_size(address), pins, who);
        !charged.ok()) {
      before_->raw_deallocate(address);
      throw_operator_error(charged.error());
    }
    write_charge(address, session->serial());
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
    // The limit it was charged to need not be the one in force by now, and may have ended.
    if (const uint64_t serial = take_charge(address)) {
      if (const SessionUse session = Process::get().sessions().use(serial))
        session->engine().discharge(malloc_usable_size(address));
    }
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
