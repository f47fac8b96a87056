// Everything behind one Runtime: a store, a heap and the engine between them, and the marks of
// its steps.
// Thread-safety: every member from any thread.
// Lifetime: lives on after its Runtime until the last storage it manages is freed.
#pragma once
#include <bottomless/torch.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "engine/engine.h"
#include "io/disk_store.h"
#include "io/store.h"
#include "os/session_table.h"
#include "os/system_calls.h"

namespace bottomless {

// Storages below this stay with torch's own allocator, charged to the limit.
inline constexpr Bytes kLeastManaged = 128_KiB;

class Session final : public BufferOwner {
 public:
  static Result<std::unique_ptr<Session>> open(const Options& options);

  Engine& engine() { return *engine_; }
  Bytes memory() const { return memory_; }
  Bytes limit() const override { return memory_; }
  // Pins, or in a forked child makes accessible: see covered_calls.cc.
  Result<std::shared_ptr<void>> hold(std::span<const iovec> buffers, Access access) override;
  // Above zero, and of no other session of this process.
  uint64_t serial() const { return serial_; }
  // Storages below this many bytes stay with torch's own allocator and are charged to the limit.
  Bytes least_managed() const { return least_managed_; }

  bool defers() const { return defers_.load(std::memory_order_relaxed); }  // updates
  void stop_deferring() { defers_.store(false, std::memory_order_relaxed); }

  void step();
  Stats stats() const;

 private:
  Session() = default;

  uint64_t serial_ = 0;
  Bytes memory_ = 0;
  Bytes least_managed_ = 1;
  std::atomic<bool> defers_{true};  // nothing is published through it
  std::unique_ptr<Store> store_;
  const DiskStore* disk_ = nullptr;  // in it
  std::unique_ptr<Engine> engine_;   // after the store: it goes first

  mutable Mutex mutex_;
  uint64_t steps_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  double step_seconds_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point step_began_ BOTTOMLESS_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
};

using SessionTable = BasicSessionTable<Session>;
using SessionUse = BasicSessionUse<Session>;

}  // namespace bottomless
