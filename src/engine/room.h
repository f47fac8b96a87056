// Room in memory: which blocks leave for others, and who waits until they have.
// Thread-safety: under the engine's lock, which waiting gives up meanwhile.
// Lifetime: what it is given must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <memory>
#include <optional>
#include <string_view>

#include "engine/budget.h"
#include "engine/changes.h"
#include "engine/contention.h"
#include "engine/mover.h"
#include "engine/options.h"
#include "engine/pins.h"
#include "engine/prefetcher.h"
#include "plan/eviction_policy.h"

namespace bottomless {

class Room {
 public:
  Room(const EngineOptions& options, Heap& heap, Budget& budget, Mover& mover,
       const Prefetcher& prefetcher, Changes& changes, std::unique_ptr<EvictionPolicy> policy);

  Contention& contention() { return contention_; }
  bool has_been_short() const { return has_been_short_; }
  bool fits_now(const Block& block) const { return mover_.footprint(block) <= heap_.available(); }

  // A block that nobody pins may leave from now on, or may not.
  void offer(Block& block);
  void withdraw(Block& block);
  // Fails when there is no place for it below.
  Result<void> evict(Block& block, Places::Leave leave, Priority priority);
  void evict_all();
  // Once memory has been short, keeps a little of it free, so that writes overlap with compute.
  void write_behind();

  // Waits until `bytes` fit. An operation that is pinning may find that another needs the room first: then it steps back,
  // which is no error.
  enum class Purpose { pin, allocate };
  enum class Outcome { there_is, step_back };
  Result<Outcome> wait_for(Bytes bytes, const Pins* pins, Purpose purpose, std::string_view who);
  // Sets room aside for a charge and for records to come, waiting until the heap can do without it.
  // Nobody may use either before: the limit would be exceeded while blocks are still leaving.
  Result<void> reserve(Bytes charge, Bytes records, const Pins* pins, std::string_view who);
  // What can never fit is refused before anything has to leave for it.
  Result<void> check_fits(Bytes bytes, const Pins* pins, std::string_view who);

  // One operation's wait for others. Fails when it has taken long and a disk is why; what the disk owes stays under way: the
  // memory belongs to it until it answers. Others that hold memory may take as long as they like, but a person should know.
  struct Wait {
    std::optional<Clock::TimePoint> since;
    bool warned = false;
  };
  Result<void> wait(Wait& wait, std::string_view who);
  // As long as it takes: the memory of a transfer cannot be given up while it is under way.
  void wait_for_io();

 private:
  bool make(Bytes bytes, Places::Leave leave, Priority priority);
  Bytes pinned_by(const Pins* pins) const;
  Error too_small(Bytes bytes, const Pins* pins, std::string_view who) const;
  Error held_by_itself(Bytes bytes, const Accessor& accessor) const;

  const EngineOptions& options_;
  Heap& heap_;
  Budget& budget_;
  Mover& mover_;
  const Prefetcher& prefetcher_;
  Changes& changes_;
  const std::unique_ptr<EvictionPolicy> policy_;
  Contention contention_;
  bool has_been_short_ = false;
  std::optional<Error> refusal_;  // why the last make() could not evict a block
};

}  // namespace bottomless
