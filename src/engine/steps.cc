// Steps: every operation is recorded, a step that has ended is planned, and its schedule is followed.
#include <functional>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

uint64_t Engine::signature_of(std::span<const Need> needs, std::string_view who) const {
  uint64_t signature = std::hash<std::string_view>()(who);
  for (const Need& need : needs) {
    signature = mix(signature, static_cast<uint64_t>(need.access));
    // What is the same in every step, such as a parameter, tells operations apart.
    const Storage* storage = table_.find(need.address);
    if (storage != nullptr && prefetcher_.is_lasting(*storage))
      signature = mix(signature, heap_->offset_of(need.address));
  }
  return signature;
}

// Writes down what the operation needs and learns what that says about the blocks. The lock may be given up before: if it
// was, what must hold for the operation to begin is seen to again.
Result<void> Engine::record_operation(std::span<const Need> needs, std::string_view who, double now,
                                      Before before) {
  if (options_.movement == Movement::when_needed) return {};
  const uint64_t signature = signature_of(needs, who);
  prefetcher_.asks(signature, now, planned_capacity());
  if (make_schedules(now) && before == Before::flush) {
    if (Result<void> flushed = flush_until_stable(needs); !flushed.ok()) return flushed;
  }
  prefetcher_.began(who, signature);
  for (const Need& need : needs) {
    table_.each_block(need, [&](Block& block) BOTTOMLESS_NOT_ANALYSED {
      if (std::exchange(block.prefetched_unused, false)) ++planned_hits_;
      prefetcher_.uses(block, {.writes = need.access == Access::write,
                               .fetches = !(need.overwritten && covers(need, block))});
      return true;
    });
  }
  return {};
}

// Begins the fetches that it is time for, as far as there is room. Those who wait for room come first.
void Engine::follow_schedule() {
  if (!options_.ahead_of_use() || room_.contention().anybody_waits()) return;
  while (Block* block = prefetcher_.due()) {
    if (block->state == State::writing) {
      block->keep_after_write = block->pins == 0;
    } else if (block->has_content() && !block->storage->dead) {
      if (!room_.fits_now(*block)) return;
      if (!mover_.start_fetch(*block, Access::read, Priority::prefetch).ok()) return;
    }
    prefetcher_.done_with_due();
  }
}

// A part of memory is left to what is still being written when its room is wanted.
Bytes Engine::planned_capacity() const {
  const Bytes budget = heap_->budget();
  return budget - budget / 10;
}

void Engine::end_step() {
  MutexLock lock(mutex_);
  const double now = seconds_now();
  prefetcher_.end_step(now, planned_capacity());
  (void)make_schedules(now);
  follow_schedule();
}

// If a step has ended: makes the schedules that are wanted. That takes up to seconds, and operations of other threads,
// faults and transfers that end must not wait for it. So the lock is given up meanwhile: true, if it was. One thread at a
// time, since all that they need is charged once; it does what others come to want as well.
bool Engine::make_schedules(double now) {
  if (prefetcher_.steps() == steps_seen_) return false;
  steps_seen_ = prefetcher_.steps();
  std::vector<Moment> moments = recorder_.take_moments();
  bool unlocked = false;
  if (!std::exchange(planning_, true)) {
    while (const std::optional<Prefetcher::Wanted> wanted = prefetcher_.wanted()) {
      unlocked = true;
      mutex_.unlock();
      options_.planning();
      Prefetcher::Made made = Prefetcher::make(*wanted);
      mutex_.lock();
      prefetcher_.adopt(*wanted, std::move(made));
    }
    planning_ = false;
  }
  end_record(unlocked ? seconds_now() : now, std::move(moments));
  return unlocked;
}

void Engine::note_moment(double asked, double ready) {
  if (!recorder_.takes_more()) return;
  const MoverStats& moved = mover_.stats();
  Moment moment{
      .asked = asked, .ready = ready, .read = moved.read_bytes, .written = moved.written_bytes};
  for (size_t kind = 0; kind < kKinds; ++kind)
    moment.resident[kind] = moved.resident.of(static_cast<Kind>(kind));
  recorder_.add(moment);
}

void Engine::end_record(double now, std::vector<Moment> moments) {
  // With hardly any memory that is no news.
  const bool matters = options_.recorded || options_.limit >= 256_MiB;
  if (matters && prefetcher_.steps_too_long() > 1 && !std::exchange(warned_too_long_, true)) {
    options_.log(
        LogLevel::warning,
        "a step has more operations than " + format_bytes(planning_bytes_ / 8) +
            " can describe: its blocks are fetched when they are needed, not ahead of it" +
            (planning_bytes_ < kMostPlanning ? ". A larger limit leaves more for the description"
                                             : ""));
  }
  if (!recorder_.on()) return;
  StepRecord record = prefetcher_.last_step();
  record.limit = options_.limit;
  const MoverStats& moved = mover_.stats();
  recorder_.end_step(std::move(record), std::move(moments), now,
                     moved.read_bytes + moved.written_bytes);
}

StepRecord Engine::last_step() const {
  MutexLock lock(mutex_);
  return recorder_.last();
}

}  // namespace bottomless
