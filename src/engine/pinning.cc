// Pins: who holds which block, and how an operation comes to hold all that it needs.
#include <algorithm>
#include <functional>
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
  engine_->evict_all_idle();
  while (engine_->writes_ > 0) engine_->stall();
}

template <class Visit>
void Engine::each_block(const Need& need, Visit visit) {
  Storage* storage = need.bytes == 0 ? nullptr : find(need.address);
  if (storage == nullptr) return;
  const Bytes from = static_cast<Bytes>(static_cast<const std::byte*>(need.address) - storage->at);
  const size_t last = std::min((from + need.bytes - 1) / block_bytes_, storage->blocks.size() - 1);
  for (size_t i = from / block_bytes_; i <= last; ++i) {
    if (!visit(storage->blocks[i])) return;
  }
}

uint64_t Engine::signature_of(std::span<const Need> needs, std::string_view who) const {
  uint64_t signature = std::hash<std::string_view>()(who);
  for (const Need& need : needs) {
    signature = mix(signature, static_cast<uint64_t>(need.access));
    // What is the same in every step, such as a parameter, tells operations apart.
    const Storage* storage = find(need.address);
    if (storage != nullptr && prefetcher_.is_lasting(*storage))
      signature = mix(signature, heap_->offset_of(need.address));
  }
  return signature;
}

// Writes down what the operation needs and learns what that says about the blocks. The lock may be given up before: if it
// was, what must hold for the operation to begin is seen to again.
Result<void> Engine::foresee(std::span<const Need> needs, std::string_view who, double now,
                             Before before) {
  if (options_.movement == Movement::when_needed) return {};
  const uint64_t signature = signature_of(needs, who);
  prefetcher_.asks(signature, now, planned_capacity());
  if (make_schedules(now) && before == Before::flush) {
    if (Result<void> flushed = flush_deferred_for(needs); !flushed.ok()) return flushed;
  }
  prefetcher_.began(who, signature);
  for (const Need& need : needs) {
    each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
      const auto* from = static_cast<const std::byte*>(need.address);
      const bool whole = from <= block.at && from + need.bytes >= block.at + block.bytes;
      if (std::exchange(block.early, false)) ++stats_.planned_hits;
      prefetcher_.uses(
          block, {.writes = need.access == Access::write, .fetches = !(need.overwritten && whole)});
      return true;
    });
  }
  return {};
}

void Engine::add_pin(Pins& pins, Block& block) {
  if (block.pins++ == 0) {
    withdraw(block);
    if (block.state == State::writing) leaving_bytes_ -= footprint(block);
  }
  if (pins.blocks_.empty()) {
    ++holders_;
    pins.blocks_.reserve(8);  // most operators need no more
  }
  pins.blocks_.push_back(&block);
}

// What the schedule has other use for the room of.
bool Engine::leave_if_due(Block& block) {
  if (block.awaited || !std::exchange(block.leaves, false) || !ahead_of_use()) return false;
  return evict(block, Places::Leave::all, Priority::prefetch).ok();
}

void Engine::drop_pin(Block& block) {
  if (--block.pins > 0) return;
  if (std::exchange(block.unfilled, false) && block.state == State::resident &&
      !block.storage->dead) {
    block.dirty = false;
    make_absent(block);
  }
  if (block.state == State::writing) leaving_bytes_ += footprint(block);
  if (block.storage->dead) {
    finalize_if_idle(*block.storage);
  } else if (block.state == State::resident) {
    if (!leave_if_due(block)) offer(block);
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
  if (pins.blocks_.empty()) --holders_;
  announce();
  follow_schedule();
}

Result<void> Engine::pin(Pins& pins, std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  if (Result<void> flushed = flush_deferred_for(needs); !flushed.ok()) return flushed;
  const double asked = seconds_now();
  if (Result<void> foreseen = foresee(needs, who, asked, Before::flush); !foreseen.ok())
    return foreseen;
  Result<void> pinned = pin_needs(pins, needs, who, Running::wait_for);
  const double ready = seconds_now();
  prefetcher_.ready(ready);
  note_moment(asked, ready);
  if (pinned.ok()) follow_schedule();
  return pinned;
}

Result<void> Engine::pin_untraced(Pins& pins, std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  if (Result<void> flushed = flush_deferred_for(needs); !flushed.ok()) return flushed;
  return pin_needs(pins, needs, who, Running::wait_for);
}

void Engine::announce_use(std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  const double now = seconds_now();
  (void)foresee(needs, who, now, Before::leave);  // which cannot fail where nothing is run
  prefetcher_.ready(now);
  note_moment(now, now);
  for (const Need& need : needs) {
    each_block(need, [](Block& block) {
      block.awaited = true;
      return true;
    });
    Storage* storage = find(need.address);
    if (storage != nullptr && need.access == Access::read) prefetcher_.gave_away(*storage);
  }
  follow_schedule();
}

void Engine::end_announced_use(const Need& need) {
  MutexLock lock(mutex_);
  each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
    block.awaited = false;
    if (block.pins == 0 && block.state == State::resident && !block.storage->dead)
      leave_if_due(block);
    return true;
  });
  announce();
  follow_schedule();
}

// Until nothing is deferred and the lock was not given up since.
Result<void> Engine::flush_deferred_for(std::span<const Need> needs) {
  do {
    if (Result<void> flushed = flush(needs, Running::wait_for); !flushed.ok()) return flushed;
  } while (destroy_finished());
  return {};
}

Result<void> Engine::pin_needs(Pins& pins, std::span<const Need> needs, std::string_view who,
                               Running running) {
  for (;;) {
    bool stepped_back = false;
    Result<void> pinned = pin_once(pins, needs, who, stepped_back);
    if (!stepped_back) return pinned;
    // Another operation needs the room first. What this one pinned earlier it still holds.
    const unsigned holding = pins.blocks_.empty() ? 0 : 1;
    stepped_back_ += holding;
    options_.before_waiting();
    stall();
    stepped_back_ -= holding;
    if (Result<void> flushed = flush(needs, running); !flushed.ok()) return flushed;
  }
}

// Pins everything before anything is waited for, so that what is already here does not leave for
// what is not.
void Engine::claim(Pins& pins, std::span<const Need> needs) {
  for (const Need& need : needs) {
    each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
      const auto* from = static_cast<const std::byte*>(need.address);
      const bool whole = from <= block.at && from + need.bytes >= block.at + block.bytes;
      const bool unused = block.pins == 0 && block.state == State::away && block.has_content();
      if (need.overwritten && whole && unused) block.unfilled = true;
      add_pin(pins, block);
      if (block.pins == 1) block.failure.reset();
      return true;
    });
  }
  for (const Need& need : needs) {
    if (need.overwritten) continue;
    each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
      if (block.state == State::away) block.unfilled = false;
      return true;
    });
  }
}

Result<void> Engine::pin_once(Pins& pins, std::span<const Need> needs, std::string_view who,
                              bool& stepped_back) {
  const size_t before = pins.blocks_.size();
  claim(pins, needs);
  Waiting waiting;
  for (;;) {
    bool all_ready = true;
    const uint64_t changes_before = changes_;
    Result<void> outcome;
    for (const Need& need : needs) {
      each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
        Result<bool> ready = advance(block, need.access, pins, who, stepped_back);
        if (!ready.ok()) outcome = std::move(ready).error();
        all_ready = all_ready && ready.ok() && ready.value();
        return outcome.ok() && !stepped_back;
      });
      if (!outcome.ok() || stepped_back) {
        drop_pins(pins, before);
        return outcome;
      }
    }
    if (all_ready) break;
    // Waiting for room on behalf of one block may have let another become ready: then nothing more
    // would wake us.
    if (changes_ != changes_before) continue;
    if (Result<void> waited = stall(waiting, who); !waited.ok()) {
      drop_pins(pins, before);
      return waited;
    }
  }
  write_behind();
  return {};
}

void Engine::fetch_ahead(std::span<const Need> needs) {
  MutexLock lock(mutex_);
  for (const Need& need : needs) {
    each_block(need, [&](Block& block) BOTTOMLESS_REQUIRES(mutex_) {
      if (block.state != State::away || !block.has_content() || block.storage->dead) return true;
      if (footprint(block) > heap_->available()) return false;
      block.failure.reset();
      return start_fetch(block, Access::read, Priority::prefetch).ok();
    });
  }
}

Result<bool> Engine::touch(const void* address, Access access, const Accessor& accessor) {
  {
    MutexLock lock(mutex_);
    if (find(address) == nullptr) return false;
    ++stats_.faults;
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
    block->leaves = false;  // the access that faulted is still to come
  drop_pins(pins, 0);       // without eager eviction, for the same reason
  return true;
}

}  // namespace bottomless
