// Pins: who holds which block, and how an operation comes to hold all that it needs.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

Pins::Pins(Engine& engine)
    : engine_(&engine), id_(engine.next_pins_id_.fetch_add(1, std::memory_order_relaxed)) {}

Pins::Pins(Pins&& other) noexcept
    : engine_(other.engine_),
      id_(std::exchange(other.id_, 0)),
      blocks_(std::exchange(other.blocks_, {})),
      done_(other.done_) {}

void Pins::release() noexcept {
  if (blocks_.empty()) return;
  MutexLock lock(engine_->mutex_);
  engine_->drop_pins(*this, 0);
  if (engine_->options_.eviction != Eviction::eagerly) return;
  engine_->room_.evict_all();
  while (engine_->mover_.writes() > 0) engine_->changes_.wait();
}

void Engine::add_pin(Pins& pins, Block& block) {
  if (block.pins++ == 0) {
    room_.withdraw(block);
    if (block.state == State::writing) mover_.wanted_again(block);
  }
  if (pins.blocks_.empty()) {
    room_.contention().began_to_hold();
    pins.blocks_.reserve(8);  // most operators need no more
  }
  pins.blocks_.push_back(&block);
}

// What the schedule has other use for the room of.
bool Engine::evict_if_due(Block& block) {
  if (block.announced || !std::exchange(block.evict_when_unpinned, false)) return false;
  return options_.ahead_of_use() && room_.evict(block, Places::Leave::all, Priority::prefetch).ok();
}

void Engine::drop_pin(Block& block) {
  if (--block.pins > 0) return;
  if (std::exchange(block.unfilled, false) && block.is_resident() && !block.storage->dead)
    mover_.drop(block);
  if (block.state == State::writing) mover_.wanted_no_more(block);
  if (block.storage->dead) {
    remove_if_idle(*block.storage);
  } else if (block.is_resident()) {
    if (!evict_if_due(block)) room_.offer(block);
  }
}

void Engine::drop_pins(Pins& pins, size_t keep) {
  if (pins.blocks_.size() == keep) return;
  while (pins.blocks_.size() > keep) {
    Block* block = pins.blocks_.back();
    pins.blocks_.pop_back();
    if (pins.done_) block->unfilled = false;
    drop_pin(*block);
  }
  if (pins.blocks_.empty()) room_.contention().holds_no_more();
  changes_.announce();
  follow_schedule();
}

Result<void> Engine::pin(Pins& pins, std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  if (Result<void> flushed = flush_until_stable(needs); !flushed.ok()) return flushed;
  const double asked = seconds_now();
  if (Result<void> recorded = record_operation(needs, who, asked, Before::flush); !recorded.ok())
    return recorded;
  Result<void> pinned = pin_needs(pins, needs, who, Running::wait_for);
  const double ready = seconds_now();
  prefetcher_.ready(ready);
  note_moment(asked, ready);
  if (pinned.ok()) follow_schedule();
  return pinned;
}

Result<void> Engine::pin_untraced(Pins& pins, std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  if (Result<void> flushed = flush_until_stable(needs); !flushed.ok()) return flushed;
  return pin_needs(pins, needs, who, Running::wait_for);
}

Result<void> Engine::pin_needs(Pins& pins, std::span<const Need> needs, std::string_view who,
                               Running running) {
  for (;;) {
    Result<Room::Outcome> pinned = pin_once(pins, needs, who);
    if (!pinned.ok()) return std::move(pinned).error();
    if (pinned.value() == Room::Outcome::there_is) return {};
    // Another operation needs the room first. What this one pinned earlier it still holds.
    const unsigned holding = pins.blocks_.empty() ? 0 : 1;
    room_.contention().step_back(holding);
    options_.before_waiting();
    changes_.wait();
    room_.contention().step_forward(holding);
    if (Result<void> flushed = flush(needs, running); !flushed.ok()) return flushed;
  }
}

// Pins everything before anything is waited for, so that what is already here does not leave for
// what is not.
void Engine::claim(Pins& pins, std::span<const Need> needs) {
  for (const Need& need : needs) {
    table_.each_block(need, [&](Block& block) BOTTOMLESS_NOT_ANALYSED {
      const bool unused = block.pins == 0 && block.state == State::absent && block.has_content();
      if (need.overwritten && covers(need, block) && unused) block.unfilled = true;
      add_pin(pins, block);
      if (block.pins == 1) block.failure.reset();
      return true;
    });
  }
  for (const Need& need : needs) {
    if (need.overwritten) continue;
    table_.each_block(need, [&](Block& block) {
      if (block.state == State::absent) block.unfilled = false;
      return true;
    });
  }
}

Result<Room::Outcome> Engine::pin_once(Pins& pins, std::span<const Need> needs,
                                       std::string_view who) {
  const size_t before = pins.blocks_.size();
  claim(pins, needs);
  Room::Wait waiting;
  for (;;) {
    bool all_ready = true;
    const uint64_t changes_before = changes_.count();
    Result<Progress> last = Progress::ready;
    const auto go_on = [&] { return last.ok() && last.value() != Progress::steps_back; };
    for (const Need& need : needs) {
      table_.each_block(need, [&](Block& block) BOTTOMLESS_NOT_ANALYSED {
        last = advance(block, need.access, pins, who);
        all_ready = all_ready && last.ok() && last.value() == Progress::ready;
        return go_on();
      });
      if (!go_on()) {
        drop_pins(pins, before);
        if (!last.ok()) return std::move(last).error();
        return Room::Outcome::step_back;
      }
    }
    if (all_ready) break;
    // Waiting for room on behalf of one block may have let another become ready: then nothing more
    // would wake us.
    if (changes_.count() != changes_before) continue;
    if (Result<void> waited = room_.wait(waiting, who); !waited.ok()) {
      drop_pins(pins, before);
      return std::move(waited).error();
    }
  }
  room_.write_behind();
  return Room::Outcome::there_is;
}

// One step of a pinned block towards the access asked for.
Result<Engine::Progress> Engine::advance(Block& block, Access access, Pins& pins,
                                         std::string_view who) {
  switch (block.state) {
    case State::clean:
    case State::dirty:
      if (access == Access::write && block.access != Access::write && block.readers > 0)
        return Progress::waits;
      mover_.grant(block, access);
      return Progress::ready;
    case State::writing:  // it can be read meanwhile
      return access != Access::write && !block.hidden_frames ? Progress::ready : Progress::waits;
    case State::prefetching:
      mover_.raise_priority(block);
      return Progress::waits;
    case State::fetching:
    case State::discarding:
      return Progress::waits;
    case State::absent:
      break;
  }
  if (block.failure) return *block.failure;
  Result<Room::Outcome> room =
      room_.wait_for(mover_.footprint(block), &pins, Room::Purpose::pin, who);
  if (!room.ok()) return std::move(room).error();
  if (room.value() == Room::Outcome::step_back) return Progress::steps_back;
  // Waiting gave up the lock: another operation may have started the fetch.
  if (block.state != State::absent) return Progress::waits;
  if (Result<void> started = mover_.start_fetch(block, access, Priority::demand); !started.ok())
    return std::move(started).error();
  if (!block.is_resident()) return Progress::waits;
  mover_.grant(block, access);
  return Progress::ready;
}

void Engine::announce_use(std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  const double now = seconds_now();
  (void)record_operation(needs, who, now, Before::leave);  // cannot fail where nothing is run
  prefetcher_.ready(now);
  note_moment(now, now);
  for (const Need& need : needs) {
    table_.each_block(need, [](Block& block) {
      block.announced = true;
      return true;
    });
    Storage* storage = table_.find(need.address);
    if (storage != nullptr && need.access == Access::read) prefetcher_.gave_away(*storage);
  }
  follow_schedule();
}

void Engine::end_announced_use(const Need& need) {
  MutexLock lock(mutex_);
  table_.each_block(need, [&](Block& block) BOTTOMLESS_NOT_ANALYSED {
    block.announced = false;
    if (block.pins == 0 && block.is_resident() && !block.storage->dead) evict_if_due(block);
    return true;
  });
  changes_.announce();
  follow_schedule();
}

void Engine::prefetch(std::span<const Need> needs) {
  MutexLock lock(mutex_);
  for (const Need& need : needs) {
    table_.each_block(need, [&](Block& block) BOTTOMLESS_NOT_ANALYSED {
      if (block.state != State::absent || !block.has_content() || block.storage->dead) return true;
      return room_.fits_now(block) &&
             mover_.start_fetch(block, Access::read, Priority::prefetch).ok();
    });
  }
}

Result<bool> Engine::touch(const void* address, Access access, const Accessor& accessor) {
  {
    MutexLock lock(mutex_);
    if (table_.find(address) == nullptr) return false;
    ++faults_;
  }
  Pins pins(*this);
  pins.accessor_ = &accessor;
  const Need need{.address = address, .bytes = 1, .access = access};
  MutexLock lock(mutex_);
  // Work that is being done may be where the access comes from.
  if (Result<void> flushed = flush({&need, 1}, Running::let_be); !flushed.ok())
    return std::move(flushed).error();
  if (Result<void> pinned =
          pin_needs(pins, {&need, 1}, "a memory access outside any operator", Running::let_be);
      !pinned.ok()) {
    return std::move(pinned).error();
  }
  for (Block* block : pins.blocks_)
    block->evict_when_unpinned = false;  // the access that faulted is still to come
  drop_pins(pins, 0);                    // without eager eviction, for the same reason
  return true;
}

}  // namespace bottomless
