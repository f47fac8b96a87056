// Movement ahead of use: follows the schedule, and keeps what a report about it needs.
#include <utility>

#include "engine/engine.h"

namespace bottomless {

// Begins the fetches that it is time for, as far as there is room. Those who wait for room come first.
void Engine::follow_schedule() {
  if (!ahead_of_use() || short_of_room_now_ > 0) return;
  while (Block* block = prefetcher_.due()) {
    if (block->state == State::writing) {
      block->stays = block->pins == 0;
    } else if (block->has_content() && !block->storage->dead) {
      if (footprint(*block) > heap_->available()) return;
      block->failure.reset();
      if (!start_fetch(*block, Access::read, Priority::prefetch).ok()) return;
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
  if (prefetcher_.steps() == steps_noted_) return false;
  steps_noted_ = prefetcher_.steps();
  std::vector<Moment> moments = std::exchange(moments_, {});
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
  note_step(unlocked ? seconds_now() : now, std::move(moments));
  return unlocked;
}

void Engine::note_moment(double asked, double ready) {
  if (!options_.recorded || moments_.size() * sizeof(Moment) > planning_bytes_ / 8) return;
  Moment moment{
      .asked = asked, .ready = ready, .read = stats_.read_bytes, .written = stats_.written_bytes};
  for (size_t kind = 0; kind < kKinds; ++kind)
    moment.resident[kind] = stats_.resident.of(static_cast<Kind>(kind));
  moments_.push_back(moment);
}

// What is known of the step that has ended.
void Engine::note_step(double now, std::vector<Moment> moments) {
  // With hardly any memory that is no news.
  const bool matters = options_.recorded || options_.limit >= 256_MiB;
  if (matters && prefetcher_.steps_too_long() > 1 && !std::exchange(warned_too_long_, true)) {
    options_.log(
        LogLevel::warning,
        "a step has more operations than " + format_bytes(planning_bytes_ / 8) +
            " can describe: its blocks are fetched when they are needed, not ahead of "
            "it" +
            (planning_bytes_ < kMostPlanning ? ". A larger limit leaves more for the description"
                                             : ""));
  }
  if (!options_.recorded) return;
  const double busy = disk_busy_ + (transfers_ > 0 ? now - disk_busy_since_ : 0);
  const Bytes moved = stats_.read_bytes + stats_.written_bytes;
  StepRecord record = prefetcher_.last_step();
  if (!moments.empty() && record.trace.events.size() == moments.size()) {
    record.moments = std::move(moments);
    record.ended = now;
    record.limit = options_.limit;
    if (busy > disk_busy_before_)
      record.rates.both = static_cast<double>(moved - moved_before_) / (busy - disk_busy_before_);
    last_step_ = std::move(record);
  }
  disk_busy_before_ = busy;
  moved_before_ = moved;
}

// Before a transfer begins, and after one has ended.
void Engine::note_disk(bool begins) {
  if (transfers_ > 0) return;
  const double now = seconds_now();
  if (begins) {
    disk_busy_since_ = now;
  } else {
    disk_busy_ += now - disk_busy_since_;
  }
}

StepRecord Engine::last_step() const {
  MutexLock lock(mutex_);
  return last_step_;
}

}  // namespace bottomless
