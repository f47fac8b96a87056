// The memory of one engine behind the process's fault handler and its redirected calls of libc, as torch has them, but without
// torch. Both exist once in a process; which engine they ask, the latest of these says.
// Thread-safety: that of the engine. Make and destroy it while no other thread accesses its memory.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "engine/rig.h"
#include "os/fault_handler.h"
#include "os/system_calls.h"

namespace bottomless {

class ManagedMemory final : public BufferOwner {
 public:
  explicit ManagedMemory(RigOptions options);
  ~ManagedMemory();
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;

  Rig& rig() { return *rig_; }

  // What the next calls of hold() fail with.
  void refuse(std::optional<Error> error) { refused_ = std::move(error); }
  uint64_t holds() const { return holds_.load(); }

  Result<std::shared_ptr<void>> hold(std::span<const iovec> buffers, Access access) override;
  Bytes limit() const override { return limit_; }

 private:
  const Bytes limit_;
  std::unique_ptr<Rig> rig_;
  std::optional<Error> refused_;
  std::atomic<uint64_t> holds_{0};
};

// Accesses without a pin, 8 bytes at a time at multiples of 8. ThreadSanitizer does not see them: it notes an access before
// it happens, which here is before the fault that orders it after the moves of the block.
uint64_t load_unpinned(const std::byte* at);
void store_unpinned(std::byte* at, uint64_t value);
void write_pattern_unpinned(std::byte* at, Bytes bytes, uint64_t key);
bool has_pattern_unpinned(const std::byte* at, Bytes bytes, uint64_t key);

}  // namespace bottomless
