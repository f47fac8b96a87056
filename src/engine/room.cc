#include "engine/room.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/at_least.h"

namespace bottomless {

Room::Room(const EngineOptions& options, Heap& heap, Budget& budget, Mover& mover,
           const Prefetcher& prefetcher, Changes& changes, std::unique_ptr<EvictionPolicy> policy)
    : options_(options),
      heap_(heap),
      budget_(budget),
      mover_(mover),
      prefetcher_(prefetcher),
      changes_(changes),
      policy_(std::move(policy)) {}

void Room::offer(Block& block) {
  if (!block.listed()) policy_->add(block);
}

void Room::withdraw(Block& block) {
  if (block.listed()) policy_->remove(block);
}

Result<void> Room::evict(Block& block, Places::Leave leave, Priority priority) {
  Result<void> evicted = mover_.evict(block, leave, priority);
  if (evicted.ok()) withdraw(block);
  return evicted;
}

void Room::evict_all() {
  while (EvictionCandidate* victim = policy_->victim(prefetcher_.position())) {
    if (!evict(static_cast<Block&>(*victim), Places::Leave::all, Priority::demand).ok())
      return;  // the disk is full: stays, and whoever needs room hears of it
  }
}

// Starts as many evictions as `bytes` need; true when they fit already.
bool Room::make(Bytes bytes, Places::Leave leave, Priority priority) {
  refusal_.reset();
  std::vector<Block*> refused;
  if (heap_.in_use() + bytes > heap_.budget()) budget_.relax(2 * budget_.charge_step());
  while (heap_.in_use() + bytes > heap_.budget() + mover_.leaving_bytes()) {
    EvictionCandidate* victim = policy_->victim(prefetcher_.position());
    if (victim == nullptr) break;
    has_been_short_ = true;
    auto& block = static_cast<Block&>(*victim);
    if (Result<void> evicted = evict(block, leave, priority); !evicted.ok()) {
      // A full disk: blocks that are clean can still leave, so look further.
      refusal_ = std::move(evicted).error();
      withdraw(block);
      refused.push_back(&block);
    }
  }
  for (Block* block : refused) offer(*block);
  return heap_.in_use() + bytes <= heap_.budget();
}

void Room::write_behind() {
  // With a full store only clean blocks could leave, and those are the ones just brought back.
  const bool useful = has_been_short_ && !mover_.places().full() &&
                      options_.eviction == Eviction::when_needed &&
                      !(options_.ahead_of_use() && prefetcher_.following());
  if (useful) make(options_.limit / 16, Places::Leave::all, Priority::prefetch);
}

Result<void> Room::wait(Wait& wait, std::string_view who) {
  if (!wait.since) wait.since = options_.clock->now();
  changes_.wait();
  if (options_.clock->now() - *wait.since < options_.timeout) return {};
  if (std::optional<Error> late = mover_.store().overdue(options_.timeout))
    return Error{late->code, "run " + std::string(who) + ": " + late->message, late->number};
  if (mover_.transfers() == 0 && !std::exchange(wait.warned, true)) {
    options_.log(LogLevel::warning,
                 std::string(who) + " has waited long for memory that other operations hold, " +
                     format_bytes(heap_.in_use()) + " of " + format_bytes(heap_.budget()) +
                     "; if this does not end, raise --memory");
  }
  return {};
}

void Room::wait_for_io() {
  bool warned = false;
  while (mover_.transfers() > 0) {
    changes_.wait();
    const std::optional<Error> late = mover_.store().overdue(options_.timeout);
    if (late && !std::exchange(warned, true)) options_.log(LogLevel::warning, late->message);
  }
}

Result<Room::Outcome> Room::wait_for(Bytes bytes, const Pins* pins, Purpose purpose,
                                     std::string_view who) {
  const uint64_t failed_before = mover_.failed_writes();
  // Of it, what `pins` do not name yet.
  const Bytes unclaimed = purpose == Purpose::pin ? 0 : bytes;
  // What is in memory may always be exchanged for what is below; a new storage must find room. Small
  // ones in between: they are what it takes to save the rest.
  const Places::Leave leave = purpose == Purpose::pin          ? Places::Leave::none
                              : bytes <= budget_.charge_step() ? Places::Leave::half
                                                               : Places::Leave::all;
  // An access inside an operation cannot step back: what the operation holds it goes on holding.
  const Accessor* accessor = pins != nullptr ? pins->accessor_ : nullptr;
  const unsigned inside = accessor != nullptr ? accessor->holding : 0;
  const Contention::Waiter waiter{
      .waiting = inside > 0                ? Contention::Waiting::to_access
                 : purpose == Purpose::pin ? Contention::Waiting::to_pin
                                           : Contention::Waiting::to_allocate,
      .holds = inside + (pins != nullptr && !pins->blocks_.empty() ? 1 : 0)};
  Wait waiting;
  uint64_t quiet_since = changes_.count();
  for (;;) {
    if (make(bytes, leave, Priority::demand)) return Outcome::there_is;
    if (mover_.failed_writes() != failed_before) {
      const Error& failed = mover_.last_failed_write();
      return Error{failed.code, "make room for " + std::string(who) + ": " + failed.message,
                   failed.number};
    }
    if (mover_.transfers() == 0) {
      if (budget_.relax(0)) continue;
      if (refusal_)
        return Error{refusal_->code, "make room for " + std::string(who) + ": " + refusal_->message,
                     refusal_->number};
      switch (contention_.verdict(waiter)) {
        case Contention::Verdict::fail:
          return inside > 0 ? held_by_itself(bytes, *accessor) : too_small(unclaimed, pins, who);
        case Contention::Verdict::step_back:
          return Outcome::step_back;
        case Contention::Verdict::wake_others:
          changes_.announce();
          break;
        case Contention::Verdict::wait:
          break;
      }
    }
    options_.before_waiting();
    contention_.begin_wait(waiter);
    Result<void> waited = wait(waiting, who);
    contention_.end_wait(waiter);
    if (!waited.ok()) return std::move(waited).error();
    if (accessor != nullptr && accessor->helps) {
      if (waiting.warned && changes_.count() == quiet_since)
        return held_by_itself(bytes, *accessor);
      if (changes_.count() != quiet_since) waiting = {};
      quiet_since = changes_.count();
    }
  }
}

Result<void> Room::reserve(Bytes charge, Bytes records, const Pins* pins, std::string_view who) {
  for (;;) {
    const Budget::Reservation more = budget_.missing_for(charge, records);
    if (more.total() == 0) return {};
    if (more.total() > heap_.budget()) {
      if (budget_.relax(0)) continue;
      return too_small(more.total(), pins, who);
    }
    if (budget_.try_reserve(more, charge)) return {};
    Result<Outcome> room = wait_for(more.total(), pins, Purpose::allocate, who);
    if (!room.ok()) return std::move(room).error();
  }
}

Result<void> Room::check_fits(Bytes bytes, const Pins* pins, std::string_view who) {
  if (heap_.in_use() + bytes <= heap_.budget()) return {};
  const Bytes at_once = pinned_by(pins) + bytes;
  if (at_once > heap_.budget()) budget_.relax(0);
  if (at_once > heap_.budget()) return too_small(bytes, pins, who);
  return {};
}

Bytes Room::pinned_by(const Pins* pins) const {
  if (pins == nullptr) return 0;
  std::vector<Block*> distinct = pins->blocks_;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  Bytes total = 0;
  for (const Block* block : distinct) total += mover_.footprint(*block);
  return total;
}

Error Room::too_small(Bytes bytes, const Pins* pins, std::string_view who) const {
  const Bytes reserved = budget_.reserved();
  const Bytes held = pinned_by(pins);
  const std::string small =
      options_.least_managed > 1
          ? ", of which those below " + format_bytes(options_.least_managed) + " never leave memory"
          : "";
  return {Code::no_memory, "run " + std::string(who) + ": it needs " + format_bytes(held + bytes) +
                               " at once besides " + format_bytes(reserved) +
                               " for bookkeeping and small tensors" + small +
                               ", but the limit is " + format_bytes(options_.limit) +
                               " (--memory); raise it to at least " +
                               format_at_least(budget_.advised_limit(held + bytes + reserved))};
}

Error Room::held_by_itself(Bytes bytes, const Accessor& accessor) const {
  const std::string inside(accessor.inside.empty() ? "an operation" : accessor.inside);
  const unsigned known = 1 + std::max(accessor.holding, 1u);  // the access, and what it is inside
  const unsigned others = contention_.holders() - std::min(contention_.holders(), known);
  const Bytes two = 2 * mover_.block_bytes();  // an instruction may read one and write another
  return {Code::no_memory,
          "serve a memory access inside " + inside + ": it needs " + format_bytes(bytes) +
              ", but " + inside + " and " + std::to_string(others) + " other operations hold " +
              format_bytes(heap_.in_use()) + " of " + format_bytes(heap_.budget()) +
              " and cannot go on before it is served; the limit is " +
              format_bytes(options_.limit) + " (--memory); raise it to at least " +
              format_bytes(options_.limit + two)};
}

}  // namespace bottomless
