// The residency state machine: keeps storages larger in sum than memory usable at stable
// addresses by moving their blocks between a heap and a store. Whoever wants to touch a block
// pins it first; a pinned block is resident and stays so. What may be touched without a pin is
// enforced by the mapping: an absent block is not accessible, a clean one is read-only, and
// touch() is what a fault handler calls for either.
// Thread-safety: every call from any thread. No lock is held during a transfer.
// Lifetime: Pins must be gone before the engine; the store must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/kind.h"
#include "base/log.h"
#include "base/mutex.h"
#include "engine/block.h"
#include "engine/deferred_work.h"
#include "engine/places.h"
#include "engine/prefetcher.h"
#include "engine/source.h"
#include "io/store.h"
#include "memory/heap.h"
#include "plan/eviction_policy.h"
#include "plan/step_record.h"

namespace bottomless {

class Engine;

enum class Movement {
  when_needed,  // blocks come when they are needed and leave by recency
  planned,      // steps are recorded, and blocks move ahead of their use
};

enum class Eviction {
  when_needed,
  eagerly,  // for tests: a block leaves as soon as nobody pins it, and its memory is poisoned
};

inline constexpr Bytes kMostPlanning = Bytes{32} << 20;  // of a limit, for traces and schedules

struct EngineOptions {
  Bytes limit = 0;           // of everything the engine holds: frames, charges and its own records
  Bytes fixed_overhead = 0;  // what the owner's own threads, rings and tables take of the limit
  Eviction eviction = Eviction::when_needed;
  Movement movement = Movement::planned;
  bool recorded = false;    // keep what last_step() tells
  Bytes least_managed = 0;  // the owner keeps smaller storages itself, and charges them
  size_t spare_places = 0;  // in the store, for the day it is full; see places.h
  std::function<void()> planning = [] {};  // called without any lock before a schedule is made
  // An operation that has waited for so long, for a disk that answers nothing, fails.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  LogSink log = [](LogLevel, std::string_view) {};
  const Clock* clock = &Clock::steady();  // of the timeout
  // Called, under the engine's lock, by a thread that is about to wait for room that others hold.
  std::function<void()> before_waiting = [] {};
};

struct EngineStats {
  Bytes limit_bytes = 0;
  Bytes peak_bytes = 0;  // frames + charges + overhead, the most there ever was
  Bytes read_bytes = 0;
  Bytes written_bytes = 0;
  Bytes gathered_bytes = 0;  // that came from sources
  Bytes overhead_bytes = 0;
  uint64_t faults = 0;
  uint64_t evictions = 0;
  uint64_t demand_fetches = 0;
  uint64_t fetches_ahead = 0;
  uint64_t planned_hits = 0;  // of these, that were there when they were needed
  uint64_t plan_departures = 0;
  uint64_t schedules_made = 0;
  uint64_t deferred = 0;
  double stall_seconds = 0;
  KindBytes resident;
  Bytes charged_bytes = 0;
  uint64_t live_storages = 0;
};

// A range of bytes that is about to be touched.
struct Need {
  const void* address = nullptr;
  Bytes bytes = 0;
  Access access = Access::read;
  bool overwritten = false;  // with Access::write: all of it, so what is there need not be fetched
};

// Where a memory access outside any operation comes from.
struct Accessor {
  std::string_view inside;  // the operation on whose thread it happened, if any
  unsigned holding = 0;     // Pins with anything in them that this thread has in this engine
  // The thread is one of several that work for some operation, nobody knows which: that holds what
  // it holds until the access has been served.
  bool helps = false;
};

// The pins of one operation; the destructor releases them.
// Thread-safety: use one object from one thread at a time, but it may move between threads.
class Pins {
 public:
  explicit Pins(Engine& engine);
  Pins(Pins&& other) noexcept;
  Pins& operator=(Pins&&) = delete;
  ~Pins() { release(); }

  void release() noexcept;
  // The operation has come to its end: what it was to overwrite is overwritten. Otherwise that is as
  // it was before.
  void done() noexcept { done_ = true; }
  bool empty() const { return blocks_.empty(); }

 private:
  friend class Engine;
  Engine* engine_;
  uint64_t id_;  // never used again, unlike the address: operations follow each other on one stack
  std::vector<Block*> blocks_;
  bool done_ = false;
  const Accessor* accessor_ = nullptr;  // of those of touch()
};

class Engine {
 public:
  Engine(const EngineOptions& options, std::unique_ptr<Heap> heap, Store& store,
         std::unique_ptr<EvictionPolicy> policy);
  ~Engine();  // waits for transfers under way; addresses become invalid
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

  // Copies content out without bringing anything in: what is away is read past the heap, so that it needs no room. Ends at
  // the end of a block at the latest; returns how many bytes. `into` is page-aligned, with bypass_buffer_bytes(bytes). What a
  // source has is only had while it is here, or on its way and that is awaited. Nobody begins to write to a block
  // while it is copied. As it came: what is on its way or was written to here is refused.
  static constexpr Bytes bypass_buffer_bytes(Bytes bytes) {
    return round_to_store(bytes) + Store::kAlignment;
  }
  enum class Wanted { as_it_is, as_it_came };
  Result<Bytes> read_bypassing_heap(const void* address, Bytes bytes, std::span<std::byte> into,
                                    Wanted wanted = Wanted::as_it_is);

  // Begins to bring in what of these ranges is away, as far as there is room for it without anything
  // having to leave. Waits for nothing, and gives way to everybody who does.
  void fetch_ahead(std::span<const Need> needs);

  // Marks the end of a step. A program that marks none has its steps found where its operations repeat.
  void end_step();

  // Puts work on these storages off until somebody wants one of them, by whatever way; until then their
  // content is not accessible. What was put off first is done first. False: it is better done now.
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
  // itself, outside any limit, what was away when it was forked. `children` hangs up when the last
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
  enum class Phase {
    pinning,
    allocating
  };  // an operation that is pinning can still step back for another

  // All of these are called with the lock held.
  Storage* find(const void* address) const BOTTOMLESS_REQUIRES(mutex_);
  size_t table_entries_for(const std::byte* at, Bytes bytes) const BOTTOMLESS_REQUIRES(mutex_);
  void enter(const Storage& storage, Storage* value) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> fill(Storage& storage, Pins& pins, std::string_view who) BOTTOMLESS_REQUIRES(mutex_);
  template <class Visit>
  void each_block(const Need& need, Visit visit) BOTTOMLESS_REQUIRES(mutex_);
  void add_pin(Pins& pins, Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void claim(Pins& pins, std::span<const Need> needs) BOTTOMLESS_REQUIRES(mutex_);
  void drop_pins(Pins& pins, size_t keep) BOTTOMLESS_REQUIRES(mutex_);
  void drop_pin(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  bool leave_if_due(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  bool written_in_sight(std::span<const Need> needs) const BOTTOMLESS_REQUIRES(mutex_);
  void conceal(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  DeferredWork* first_deferred(std::span<const Need> needs) BOTTOMLESS_REQUIRES(mutex_);
  enum class Running { wait_for, let_be };  // what to do about work that somebody is doing
  Result<void> flush(std::span<const Need> needs, Running running) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> run_deferred(DeferredWork& work) BOTTOMLESS_REQUIRES(mutex_);
  std::shared_ptr<DeferredWork> remove_deferred(DeferredWork& work) BOTTOMLESS_REQUIRES(mutex_);
  bool destroy_finished() BOTTOMLESS_REQUIRES(mutex_);
  void let_die(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  uint64_t signature_of(std::span<const Need> needs, std::string_view who) const
      BOTTOMLESS_REQUIRES(mutex_);
  enum class Before { flush, leave };  // what to do about work that was deferred
  Result<void> foresee(std::span<const Need> needs, std::string_view who, double now, Before before)
      BOTTOMLESS_REQUIRES(mutex_);
  bool make_schedules(double now) BOTTOMLESS_REQUIRES(mutex_);
  void note_moment(double asked, double ready) BOTTOMLESS_REQUIRES(mutex_);
  void note_step(double now, std::vector<Moment> moments) BOTTOMLESS_REQUIRES(mutex_);
  void note_disk(bool begins) BOTTOMLESS_REQUIRES(mutex_);
  void follow_schedule() BOTTOMLESS_REQUIRES(mutex_);
  bool ahead_of_use() const {
    return options_.movement == Movement::planned && options_.eviction == Eviction::when_needed;
  }
  Bytes planned_capacity() const BOTTOMLESS_REQUIRES(mutex_);
  Result<void*> allocate(Bytes bytes, Kind kind, Pins* pins, std::unique_ptr<Outside> outside,
                         std::string_view who) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> flush_deferred_for(std::span<const Need> needs) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> read_extent(const Block& block, Bytes from, Bytes bytes, std::span<std::byte> into)
      BOTTOMLESS_REQUIRES(mutex_);
  Result<void> pin_needs(Pins& pins, std::span<const Need> needs, std::string_view who,
                         Running running) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> pin_once(Pins& pins, std::span<const Need> needs, std::string_view who,
                        bool& stepped_back) BOTTOMLESS_REQUIRES(mutex_);
  Result<bool> advance(Block& block, Access access, Pins& pins, std::string_view who,
                       bool& stepped_back) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> wait_for_room(Bytes bytes, const Pins* pins, Phase phase, std::string_view who,
                             bool& stepped_back) BOTTOMLESS_REQUIRES(mutex_);
  bool make_room(Bytes bytes, Places::Leave leave, Priority priority) BOTTOMLESS_REQUIRES(mutex_);
  void write_behind() BOTTOMLESS_REQUIRES(mutex_);
  Result<void> evict(Block& block, Places::Leave leave, Priority priority)
      BOTTOMLESS_REQUIRES(mutex_);
  void evict_all_idle() BOTTOMLESS_REQUIRES(mutex_);
  void start_write(Block& block, Priority priority) BOTTOMLESS_REQUIRES(mutex_);
  static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  struct Waiting {  // of one operation
    std::optional<Clock::TimePoint> since;
    bool warned = false;
  };
  void stall() BOTTOMLESS_REQUIRES(mutex_);
  Result<void> stall(Waiting& waiting, std::string_view who) BOTTOMLESS_REQUIRES(mutex_);
  void finish_transfers() BOTTOMLESS_REQUIRES(mutex_);
  void announce() BOTTOMLESS_REQUIRES(mutex_);
  Result<void> start_fetch(Block& block, Access access, Priority priority)
      BOTTOMLESS_REQUIRES(mutex_);
  void written(Block& block, Result<void> outcome);
  void fetched(Block& block, Frames&& frames, Access access, Result<void> outcome);
  void start_gather(Block& block, Frames&& frames, Access access, Priority priority)
      BOTTOMLESS_REQUIRES(mutex_);
  void fetch_ended(Block& block, Frames&& frames, Access access, Result<void> outcome)
      BOTTOMLESS_REQUIRES(mutex_);
  void make_resident(Block& block, Frames&& frames, Access access) BOTTOMLESS_REQUIRES(mutex_);
  void make_absent(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void grant(Block& block, Access access) BOTTOMLESS_REQUIRES(mutex_);
  void make_writable(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void offer(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void withdraw(Block& block) BOTTOMLESS_REQUIRES(mutex_);
  void finalize_if_idle(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  void finalize(Storage& storage) BOTTOMLESS_REQUIRES(mutex_);
  Result<void> set_aside(Bytes charge, Bytes records, const Pins* pins, std::string_view who)
      BOTTOMLESS_REQUIRES(mutex_);
  bool relax_reserves(Bytes keep) BOTTOMLESS_REQUIRES(mutex_);
  void fit_heap() BOTTOMLESS_REQUIRES(mutex_);
  void note_peak() BOTTOMLESS_REQUIRES(mutex_);
  Bytes overhead(Bytes more_records = 0) const BOTTOMLESS_REQUIRES(mutex_);
  Bytes charged() const BOTTOMLESS_REQUIRES(mutex_);
  Bytes take_slack(Bytes bytes) noexcept;
  Bytes footprint(const Block& block) const { return heap_->footprint(block.bytes); }
  Bytes pinned_by(const Pins* pins) const BOTTOMLESS_REQUIRES(mutex_);
  Bytes advised_limit(Bytes least) const BOTTOMLESS_REQUIRES(mutex_);
  Error too_small(Bytes bytes, const Pins* pins, std::string_view who) const
      BOTTOMLESS_REQUIRES(mutex_);
  Error held_by_itself(Bytes bytes, const Accessor& accessor) const BOTTOMLESS_REQUIRES(mutex_);

  const EngineOptions options_;
  const Bytes planning_bytes_;
  const Bytes block_bytes_;
  const Bytes charge_step_;
  Store& store_;
  Places places_ BOTTOMLESS_GUARDED_BY(mutex_);

  mutable Mutex mutex_;
  CondVar changed_;  // room was freed, a transfer ended, a pin was dropped
  uint64_t changes_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // how often it was notified
  unsigned waiters_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  const std::unique_ptr<Heap> heap_;  // contains() needs no lock, the rest does
  const std::unique_ptr<EvictionPolicy> policy_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<DeferredWork>> deferred_ BOTTOMLESS_GUARDED_BY(mutex_);
  // Done, but not destroyed yet: see destroy_finished().
  std::vector<std::shared_ptr<DeferredWork>> finished_ BOTTOMLESS_GUARDED_BY(mutex_);
  Prefetcher prefetcher_ BOTTOMLESS_GUARDED_BY(mutex_);
  uint64_t steps_noted_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  bool planning_ BOTTOMLESS_GUARDED_BY(mutex_) = false;  // somebody makes schedules
  bool warned_too_long_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::vector<Moment> moments_ BOTTOMLESS_GUARDED_BY(mutex_);  // of the step under way
  StepRecord last_step_ BOTTOMLESS_GUARDED_BY(mutex_);
  double disk_busy_since_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  double disk_busy_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;         // seconds, up to then
  double disk_busy_before_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // up to the begin of the step
  Bytes moved_before_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  unsigned short_of_room_now_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // operations that wait for room
  std::vector<Storage*> table_
      BOTTOMLESS_GUARDED_BY(mutex_);  // by offset in the heap, one entry a granule
  uint64_t live_storages_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  uint64_t live_blocks_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  Bytes leaving_bytes_ BOTTOMLESS_GUARDED_BY(mutex_) =
      0;  // frames of blocks being written that nobody wants back
  unsigned transfers_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  unsigned holders_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // operations that hold a pin
  unsigned stuck_pinning_ BOTTOMLESS_GUARDED_BY(mutex_) =
      0;  // of these, waiting for room to pin more
  unsigned stuck_allocating_ BOTTOMLESS_GUARDED_BY(mutex_) =
      0;  // of these, waiting for room to allocate
  unsigned stuck_accessing_ BOTTOMLESS_GUARDED_BY(mutex_) =
      0;  // of these, accesses that wait for room inside operations, and these operations
  unsigned stepped_back_ BOTTOMLESS_GUARDED_BY(mutex_) =
      0;  // of these, waiting for others after giving back what they could
  bool short_of_room_ BOTTOMLESS_GUARDED_BY(mutex_) = false;  // has ever been
  unsigned lifted_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;   // blocks that are written out of sight
  uint64_t watches_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // that were ever asked for
  unsigned writes_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;   // of the transfers, those to the store
  uint64_t broken_writes_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // transfers to the store that failed
  Error last_broken_write_ BOTTOMLESS_GUARDED_BY(mutex_){};
  std::optional<Error> refusal_
      BOTTOMLESS_GUARDED_BY(mutex_);  // why the last make_room() could not evict a block
  EngineStats stats_ BOTTOMLESS_GUARDED_BY(mutex_);

  // Set aside of the limit: the heap's budget is lowered by both.
  Bytes records_reserve_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // at least overhead()
  Bytes charge_reserve_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;   // charges and the slack
  // What is set aside for charges and not in use: a charge it covers needs no lock. Relaxed order
  // suffices: nothing is published through it, only the sum must be exact.
  std::atomic<int64_t> charge_slack_{0};
  std::atomic<uint64_t> next_pins_id_{1};
  std::atomic_flag touching_in_child_;  // a lock that a signal handler may take
};

}  // namespace bottomless
