// The residency state machine: keeps storages larger in sum than memory usable at stable
// addresses by moving their blocks between a heap and a store. Whoever wants to touch a block
// pins it first; a pinned block is resident and stays so. What may be touched without a pin is
// enforced by the mapping: an absent block is not accessible, a clean one is read-only, and
// touch() is what a fault handler calls for either.
// This class has the lock and puts the parts together, each with state of its own: StorageTable, Budget, Mover, Room,
// DeferredQueue, Prefetcher, StepRecorder.
// Thread-safety: every call from any thread. No lock is held during a transfer.
// Lifetime: Pins must be gone before the engine; the store must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/kind.h"
#include "base/mutex.h"
#include "engine/block.h"
#include "engine/budget.h"
#include "engine/changes.h"
#include "engine/deferred_queue.h"
#include "engine/mover.h"
#include "engine/need.h"
#include "engine/options.h"
#include "engine/pins.h"
#include "engine/prefetcher.h"
#include "engine/room.h"
#include "engine/source.h"
#include "engine/step_recorder.h"
#include "engine/storage_table.h"
#include "io/store.h"
#include "memory/heap.h"
#include "plan/eviction_policy.h"
#include "plan/step_record.h"

namespace bottomless {

class Engine final : Mover::Owner {
 public:
  Engine(const EngineOptions& options, std::unique_ptr<Heap> heap, Store& store,
         std::unique_ptr<EvictionPolicy> policy);
  ~Engine() override;  // waits for transfers under way; addresses become invalid
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  bool contains(const void* address) const noexcept { return heap_->contains(address); }
  // The range that contains() is about.
  std::span<const std::byte> addresses() const noexcept { return heap_->addresses(); }

  // A storage with arbitrary content. With `pins` all of it is resident, writable and pinned there;
  // without, nothing is resident until it is pinned or touched. `who` names the operation in
  // errors.
  Result<void*> allocate(Bytes bytes, Kind kind, Pins* pins, std::string_view who);
  // A storage whose content `source` has. It may be written to here, and then is this process's own; until it is
  // invalidated: from then on its content is again what the source has by then. Kept: what was fetched and must leave goes to
  // the store, and comes back from there.
  enum class Fetched { kept, dropped };
  Result<void*> allocate_from(std::shared_ptr<Source> source, Bytes bytes, Kind kind,
                              Fetched fetched, std::string_view who);
  // Waits until nobody uses it. No operation may begin to, meanwhile.
  void invalidate(const void* address);
  // Whether anybody has written to it since it was last invalidated.
  bool written_here(const void* address) const;

  // `current` are the pins of the operation that frees, if any: what it allocated itself goes at
  // once.
  void free(void* address, Pins* current) noexcept;

  // Makes every range resident with the access asked for and adds it to `pins`; addresses of others
  // are passed over. On an error nothing is added. Code::no_memory: more is needed at once than the
  // limit holds.
  Result<void> pin(Pins& pins, std::span<const Need> needs, std::string_view who);

  // The same for work beside the program's own, of which no schedule need know.
  Result<void> pin_untraced(Pins& pins, std::span<const Need> needs, std::string_view who);

  // That work will use these from here on: schedules know of it as of an operation, and what they would have leave stays
  // until end_announced_use(). What it only reads it frees when it is done, which schedules take for done at once: when exactly
  // differs from step to step. Nothing is pinned.
  void announce_use(std::span<const Need> needs, std::string_view who);
  void end_announced_use(const Need& need);

  // Copies content out without making anything resident: what is absent is read bypassing the heap, without room. Ends at
  // the end of a block at the latest; returns how many bytes. `into` is page-aligned, with bypass_buffer_bytes(bytes). What a
  // source has is only had while it is here, or on its way and that is awaited. Nobody begins to write to a block
  // while it is copied. As it came: what is on its way or was written to here is refused.
  static constexpr Bytes bypass_buffer_bytes(Bytes bytes) {
    return round_to_store(bytes) + Store::kAlignment;
  }
  enum class Wanted { as_it_is, as_it_came };
  Result<Bytes> read_bypassing_heap(const void* address, Bytes bytes, std::span<std::byte> into,
                                    Wanted wanted = Wanted::as_it_is);

  // Begins to bring in what of these ranges is absent, as far as there is room for it without anything
  // having to leave. Waits for nothing, and gives way to everybody who does.
  void prefetch(std::span<const Need> needs);

  // Marks the end of a step. A program that marks none has its steps found where its operations repeat.
  void end_step();

  // Defers work on these storages until somebody wants one of them, by whatever way; until then their
  // content is not accessible. What was deferred first runs first. False: it is better done now.
  bool defer(std::span<const Need> needs, std::shared_ptr<DeferredWork> work);
  Result<void> flush_deferred();  // runs all of it
  // Drops what would change only storages that have been freed since.
  void drop_unseen_deferred();

  // The last step that was recorded whole; empty if there is none yet.
  StepRecord last_step() const;

  // For a fault handler's service thread: makes the block around `address` accessible. False: not
  // one of ours. Fails when only operations could make room for it that wait for it themselves.
  Result<bool> touch(const void* address, Access access, const Accessor& accessor = {});

  // Around fork(). The copy in the child has no threads: it moves nothing, and only brings in for
  // itself, outside any limit, what was absent when it was forked. `children` hangs up when the last
  // process that could do so has ended.
  void before_fork();
  void after_fork_in_parent(UniqueFd children);
  void after_fork_in_child();
  // In a forked child, what touch() is in its parent; may be called by a signal handler.
  bool touch_in_child(const void* address, Access access) noexcept;

  // Memory of others that counts against the limit, such as small tensors. Charging makes room if
  // need be; `pins` are those of the operation that asks, if any.
  Result<void> charge(Bytes bytes, const Pins* pins, std::string_view who);
  void discharge(Bytes bytes) noexcept;

  // True when blocks as small as `bytes` had better stay elsewhere: memory is full of small ones,
  // and each costs the kernel mappings, of which a process may have only so many.
  bool too_small_to_manage(Bytes bytes) const;

  // A number worked out from all of a storage's content, kept until anybody writes to it, by whatever way: watch()
  // before the content is read, keep() after, with what watch() gave. That is nothing while somebody may be writing.
  std::optional<uint64_t> watch(const void* address);
  void keep(const void* address, uint64_t watch, Derived derived);
  std::optional<double> kept(const void* address, uint64_t what) const;

  void set_kind(const void* address, Kind kind);
  EngineStats stats() const;
  uint64_t live_storages() const;
  // Waits for the transfers under way: storages that were freed during one go when it ends.
  void wait_for_io();

 private:
  friend class Pins;
  enum class Running { wait_for, let_be };  // what to do about deferred work that somebody runs
  enum class Before { flush, leave };       // what to do about work that was deferred

  // Mover::Owner, with the lock held.
  void fetch_ended(Block& block) override BOTTOMLESS_REQUIRES(mutex_);
  void write_ended(Block& block) override BOTTOMLESS_REQUIRES(mutex_);

  // Storages, in engine.cc.
  Result<void*> allocate(Bytes bytes, Kind kind, Pins* pins, std::unique_ptr<Remote> remote,
                         std::string_view who) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> fill(Storage& storage, Pins& pins, std::string_view who) BOTTOMLESS_REQUIRES(mutex_);
  void end_life(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  void remove_if_idle(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  void remove(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);

  // Pins, in pinning.cc.
  void add_pin(Pins& pins, Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void drop_pin(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void drop_pins(Pins& pins, size_t keep) BOTTOMLESS_REQUIRES(mutex_);
  bool evict_if_due(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void claim(Pins& pins, std::span<const Need> needs) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> pin_needs(Pins& pins, std::span<const Need> needs, std::string_view who,
                         Running running) BOTTOMLESS_REQUIRES(mutex_);
  Result<Room::Outcome> pin_once(Pins& pins, std::span<const Need> needs, std::string_view who)
      BOTTOMLESS_REQUIRES(mutex_);
  enum class Progress { ready, waits, steps_back };
  Result<Progress> advance(Block& block, Access access, Pins& pins, std::string_view who)
      BOTTOMLESS_REQUIRES(mutex_);

  // Deferred work, in deferred.cc.
  bool is_written_in_sight(std::span<const Need> needs) const BOTTOMLESS_REQUIRES(mutex_);
  Result<void> flush(std::span<const Need> needs, Running running) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> flush_until_stable(std::span<const Need> needs) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> run(DeferredWork& work) BOTTOMLESS_REQUIRES(mutex_);
  std::shared_ptr<DeferredWork> remove(DeferredWork& work) BOTTOMLESS_REQUIRES(mutex_);
  bool destroy_finished() BOTTOMLESS_REQUIRES(mutex_);

  // Steps and what is moved ahead, in steps.cc.
  uint64_t signature_of(std::span<const Need> needs, std::string_view who) const
      BOTTOMLESS_REQUIRES(mutex_);
  Result<void> record_operation(std::span<const Need> needs, std::string_view who, double now,
                                Before before) BOTTOMLESS_REQUIRES(mutex_);
  bool make_schedules(double now) BOTTOMLESS_REQUIRES(mutex_);
  void note_moment(double asked, double ready) BOTTOMLESS_REQUIRES(mutex_);
  void end_record(double now, std::vector<Moment> moments) BOTTOMLESS_REQUIRES(mutex_);
  void follow_schedule() BOTTOMLESS_REQUIRES(mutex_);
  Bytes planned_capacity() const BOTTOMLESS_REQUIRES(mutex_);

  const EngineOptions options_;
  const Bytes planning_bytes_;
  mutable Mutex mutex_;
  const std::unique_ptr<Heap> heap_;  // contains() needs no lock, the rest does
  Changes changes_;
  StorageTable table_ BOTTOMLESS_GUARDED_BY(mutex_);
  Budget budget_;  // charges need no lock where the slack covers them
  StepRecorder recorder_ BOTTOMLESS_GUARDED_BY(mutex_);
  Prefetcher prefetcher_ BOTTOMLESS_GUARDED_BY(mutex_);
  Mover mover_ BOTTOMLESS_GUARDED_BY(mutex_);
  Room room_ BOTTOMLESS_GUARDED_BY(mutex_);
  DeferredQueue deferred_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool planning_ BOTTOMLESS_GUARDED_BY(mutex_) = false;  // somebody makes schedules
  uint64_t steps_seen_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  bool warned_too_long_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  uint64_t watches_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // that were ever asked for
  uint64_t faults_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  uint64_t planned_hits_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  uint64_t deferrals_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> next_pins_id_{1};
  std::atomic_flag touching_in_child_;  // a lock that a signal handler may take
};

}  // namespace bottomless
