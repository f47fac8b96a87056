#include "os/managed_memory.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace bottomless {
namespace {

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers have no other argument
constinit std::atomic<ManagedMemory*> g_memory{nullptr};

BufferOwner* owner_here(const void* address) {
  ManagedMemory* memory = g_memory.load();
  return memory != nullptr && memory->rig().engine().contains(address) ? memory : nullptr;
}

void install() {
  static FaultHandler* const handler = [] {
    auto* made = new FaultHandler;  // NOLINT: lives as long as the process
    const Result<void> started =
        made->start({.owns = [](const void* address) { return owner_here(address) != nullptr; },
                     .serve_here = [](const void*, Access) { return std::optional<bool>(); },
                     .origin_here = [] { return FaultHandler::Origin{}; },
                     .serve = [](const void* address, Access access,
                                 const FaultHandler::Origin&) -> Result<bool> {
                       ManagedMemory* memory = g_memory.load();
                       if (memory == nullptr) return false;
                       return memory->rig().engine().touch(address, access);
                     },
                     .prepare = [] {}});
    EXPECT_TRUE(started.ok()) << started.error().message;
    return made;
  }();
  static_cast<void>(handler);
  // Each time: a library may have been loaded since.
  cover_system_calls({.owner_of = &owner_here, .in_forked_child = [] { return false; }}, {});
}

}  // namespace

ManagedMemory::ManagedMemory(RigOptions options) : limit_(options.limit) {
  options.before_waiting = [also = std::move(options.before_waiting)] {
    FaultHandler::before_waiting();
    also();
  };
  rig_ = std::make_unique<Rig>(options);
  install();
  g_memory.store(this);
}

ManagedMemory::~ManagedMemory() { g_memory.store(nullptr); }

Result<std::shared_ptr<void>> ManagedMemory::hold(std::span<const iovec> buffers, Access access) {
  if (refused_) return *refused_;
  std::vector<Need> needs;
  for (const iovec& buffer : buffers) needs.push_back({buffer.iov_base, buffer.iov_len, access});
  auto pins = std::make_shared<Pins>(rig_->engine());
  if (Result<void> pinned = rig_->engine().pin_untraced(*pins, needs, "a system call");
      !pinned.ok())
    return std::move(pinned).error();
  ++holds_;
  return std::shared_ptr<void>(std::move(pins));
}

#define BOTTOMLESS_NOT_SEEN __attribute__((noinline, no_sanitize("thread")))

BOTTOMLESS_NOT_SEEN uint64_t load_unpinned(const std::byte* at) {
  return *reinterpret_cast<const volatile uint64_t*>(at);
}

BOTTOMLESS_NOT_SEEN void store_unpinned(std::byte* at, uint64_t value) {
  *reinterpret_cast<volatile uint64_t*>(at) = value;
}

void write_pattern_unpinned(std::byte* at, Bytes bytes, uint64_t key) {
  std::vector<uint64_t> pattern(bytes / 8);
  write_pattern(reinterpret_cast<std::byte*>(pattern.data()), bytes, key);
  for (size_t i = 0; i < pattern.size(); ++i) store_unpinned(at + 8 * i, pattern[i]);
}

bool has_pattern_unpinned(const std::byte* at, Bytes bytes, uint64_t key) {
  std::vector<uint64_t> found(bytes / 8);
  for (size_t i = 0; i < found.size(); ++i) found[i] = load_unpinned(at + 8 * i);
  return has_pattern(reinterpret_cast<const std::byte*>(found.data()), bytes, key);
}

}  // namespace bottomless
