// Who waits, for what, and when that must end: for room, for transfers, for a disk that is silent.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

// Waits for any change, but not for ever; the time counts as stall.
void Engine::stall() {
  const double start = seconds_now();
  ++waiters_;
  options_.clock->wait(changed_, mutex_, options_.timeout);
  --waiters_;
  stats_.stall_seconds += seconds_now() - start;
}

// Fails when it has taken long and a disk is why. What the disk owes stays under way: the memory
// belongs to it until it answers. Others that hold memory may take as long as they like, but a person
// should know.
Result<void> Engine::stall(Waiting& waiting, std::string_view who) {
  if (!waiting.since) waiting.since = options_.clock->now();
  stall();
  if (options_.clock->now() - *waiting.since < options_.timeout) return {};
  if (std::optional<Error> late = store_.overdue(options_.timeout))
    return Error{late->code, "run " + std::string(who) + ": " + late->message};
  if (transfers_ == 0 && !std::exchange(waiting.warned, true)) {
    options_.log(LogLevel::warning,
                 std::string(who) + " has waited long for memory that other operations hold, " +
                     format_bytes(heap_->in_use()) + " of " + format_bytes(heap_->budget()) +
                     "; if this does not end, raise --memory");
  }
  return {};
}

// Waits as long as it takes: the memory of a transfer cannot be given up while it is under way.
void Engine::finish_transfers() {
  bool warned = false;
  while (transfers_ > 0) {
    stall();
    const std::optional<Error> late = store_.overdue(options_.timeout);
    if (late && !std::exchange(warned, true)) options_.log(LogLevel::warning, late->message);
  }
}

void Engine::announce() {
  ++changes_;
  if (waiters_ > 0) changed_.notify_all();
}

Error Engine::held_by_itself(Bytes bytes, const Accessor& accessor) const {
  const std::string inside(accessor.inside.empty() ? "an operation" : accessor.inside);
  const unsigned known = 1 + std::max(accessor.holding, 1u);  // the access, and what it is inside
  const unsigned others = holders_ - std::min(holders_, known);
  const Bytes two = 2 * block_bytes_;  // an instruction may read one and write another
  return {Code::no_memory,
          "serve a memory access inside " + inside + ": it needs " + format_bytes(bytes) +
              ", but " + inside + " and " + std::to_string(others) + " other operations hold " +
              format_bytes(heap_->in_use()) + " of " + format_bytes(heap_->budget()) +
              " and cannot go on before it is served; the limit is " +
              format_bytes(options_.limit) + " (--memory); raise it to at least " +
              format_bytes(options_.limit + two)};
}

Result<void> Engine::wait_for_room(Bytes bytes, const Pins* pins, Phase phase, std::string_view who,
                                   bool& stepped_back) {
  const uint64_t broken_before = broken_writes_;
  const unsigned me = pins != nullptr && !pins->blocks_.empty() ? 1 : 0;
  const Bytes unclaimed =
      phase == Phase::pinning ? 0 : bytes;  // of it, what `pins` do not name yet
  // What is in memory may always be exchanged for what is below; a new storage must find room. Small
  // ones in between: they are what it takes to save the rest.
  const Places::Leave leave = phase == Phase::pinning ? Places::Leave::none
                              : bytes <= charge_step_ ? Places::Leave::half
                                                      : Places::Leave::all;
  // An access inside an operation cannot step back: what the operation holds it goes on holding.
  const Accessor* accessor = pins != nullptr ? pins->accessor_ : nullptr;
  const unsigned inside = accessor != nullptr ? accessor->holding : 0;
  Waiting waiting;
  uint64_t quiet_since = changes_;
  for (;;) {
    if (make_room(bytes, leave, Priority::demand)) return {};
    if (broken_writes_ != broken_before) {
      return Error{last_broken_write_.code,
                   "make room for " + std::string(who) + ": " + last_broken_write_.message};
    }
    if (transfers_ == 0) {
      if (relax_reserves(0)) continue;
      if (refusal_) {
        return Error{refusal_->code,
                     "make room for " + std::string(who) + ": " + refusal_->message};
      }
      const unsigned others = holders_ - me - inside;
      if (others == stepped_back_) {
        if (inside > 0) return held_by_itself(bytes, *accessor);
        return too_small(unclaimed, pins, who);
      }
      if (others == stepped_back_ + stuck_pinning_ + stuck_allocating_ + stuck_accessing_) {
        // Nobody runs who could give something back.
        if (inside > 0) {
          if (stuck_pinning_ + stuck_allocating_ == 0) return held_by_itself(bytes, *accessor);
          announce();  // those who are pinning step back, those who allocate can fail
        } else if (phase == Phase::pinning) {
          stepped_back = true;
          return {};
        }
        if (phase == Phase::allocating) {
          if (stuck_pinning_ == 0) return too_small(unclaimed, pins, who);
          announce();  // those who are pinning step back
        }
      }
    }
    unsigned& stuck = inside > 0                ? stuck_accessing_
                      : phase == Phase::pinning ? stuck_pinning_
                                                : stuck_allocating_;
    options_.before_waiting();
    stuck += me + inside;
    ++short_of_room_now_;
    Result<void> waited = stall(waiting, who);
    --short_of_room_now_;
    stuck -= me + inside;
    if (!waited.ok()) return waited;
    if (accessor != nullptr && accessor->helps) {
      if (waiting.warned && changes_ == quiet_since) return held_by_itself(bytes, *accessor);
      if (changes_ != quiet_since) waiting = {};
      quiet_since = changes_;
    }
  }
}

}  // namespace bottomless
