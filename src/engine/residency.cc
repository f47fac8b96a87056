// How blocks become resident and leave: room, evictions, transfers and what their completion does.
#include <utility>

#include "base/check.h"
#include "engine/engine.h"

namespace bottomless {

// One step of a pinned block towards the access asked for; true when it is there.
Result<bool> Engine::advance(Block& block, Access access, Pins& pins, std::string_view who,
                             bool& stepped_back) {
  switch (block.state) {
    case State::resident:
      if (access == Access::write && block.access != Access::write && block.copying > 0)
        return false;
      grant(block, access);
      return true;
    case State::writing:
      return access != Access::write && !block.lifted;  // it can be read meanwhile
    case State::fetching:
      if (!std::exchange(block.ahead, false)) return false;
      if (block.outside) {
        block.storage->outside->source->raise_priority(
            static_cast<Bytes>(block.at - block.storage->at));
      } else {
        store_.raise_priority(block.place.extent);
      }
      return false;
    case State::away:
      break;
  }
  if (block.failure) return *block.failure;
  Result<void> room = wait_for_room(footprint(block), &pins, Phase::pinning, who, stepped_back);
  if (!room.ok()) return std::move(room).error();
  // Waiting gave up the lock: another operation may have started the fetch.
  if (stepped_back || block.state != State::away) return false;
  if (Result<void> started = start_fetch(block, access, Priority::demand); !started.ok())
    return std::move(started).error();
  if (block.state != State::resident) return false;
  grant(block, access);
  return true;
}

// To whoever pins a resident block.
void Engine::grant(Block& block, Access access) {
  if (access == Access::write) {
    make_writable(block);
  } else if (block.access == Access::none) {
    const bool watched = block.storage->watch || block.storage->outside;
    block.access = block.dirty && !watched ? Access::write : Access::read;
    heap_->protect(block.at, block.bytes, block.access);
  }
}

// Starts as many evictions as `bytes` need; true when they fit already.
bool Engine::make_room(Bytes bytes, Places::Leave leave, Priority priority) {
  refusal_.reset();
  std::vector<Block*> refused;
  if (heap_->in_use() + bytes > heap_->budget()) relax_reserves(2 * charge_step_);
  while (heap_->in_use() + bytes > heap_->budget() + leaving_bytes_) {
    EvictionCandidate* victim = policy_->victim(prefetcher_.position());
    if (victim == nullptr) break;
    short_of_room_ = true;
    auto& block = static_cast<Block&>(*victim);
    if (Result<void> evicted = evict(block, leave, priority); !evicted.ok()) {
      // A full disk: blocks that are clean can still leave, so look further.
      refusal_ = std::move(evicted).error();
      withdraw(block);
      refused.push_back(&block);
    }
  }
  for (Block* block : refused) offer(*block);
  return heap_->in_use() + bytes <= heap_->budget();
}

// Once memory has been short, keeps a little of it free, so that writes overlap with compute.
void Engine::write_behind() {
  // With a full store only clean blocks could leave, and those are the ones just brought back.
  const bool useful = short_of_room_ && !places_.full() &&
                      options_.eviction == Eviction::when_needed &&
                      !(ahead_of_use() && prefetcher_.following());
  if (useful) make_room(options_.limit / 16, Places::Leave::all, Priority::prefetch);
}

Result<void> Engine::evict(Block& block, Places::Leave leave, Priority priority) {
  if (!block.dirty) {
    withdraw(block);
    make_absent(block);
    ++stats_.evictions;
    return {};
  }
  if (block.place.empty() || !places_.may_write(block.place)) {
    Result<Place> place = places_.allocate(block.bytes, leave);
    if (!place.ok()) return std::move(place).error();
    if (!block.place.empty()) places_.free(block.place);
    block.place = place.value();
  }
  withdraw(block);
  start_write(block, priority);
  ++stats_.evictions;
  return {};
}

void Engine::evict_all_idle() {
  while (EvictionCandidate* victim = policy_->victim(prefetcher_.position())) {
    if (!evict(static_cast<Block&>(*victim), Places::Leave::all, Priority::demand).ok())
      return;  // the disk is full: stays, and whoever needs room hears of it
  }
}

void Engine::start_write(Block& block, Priority priority) {
  block.become(State::writing);
  // From here on a write by anybody faults and waits: what reaches the disk is one consistent
  // version.
  // Written ahead of need, it is not expected back soon, and out of sight it may as well be updated later.
  const bool out_of_sight = priority == Priority::prefetch || block.access == Access::none;
  Pieces pieces{{block.at, round_to_store(block.bytes)}};
  if (!out_of_sight) {
    heap_->protect(block.at, block.bytes, Access::read);
    block.access = Access::read;
  } else {
    block.access = Access::none;
    ++lifted_;
    block.lifted = std::make_shared<Frames>(heap_->lift(block.at, block.bytes));
    pieces = block.lifted->pieces(round_to_store(block.bytes), heap_->frame_sizes());
  }
  leaving_bytes_ += footprint(block);
  note_disk(true);
  ++transfers_;
  ++writes_;
  store_.write(block.place.extent, std::move(pieces), priority,
               [this, &block](Result<void> outcome) { written(block, std::move(outcome)); });
}

void Engine::written(Block& block, Result<void> outcome) {
  MutexLock lock(mutex_);
  --transfers_;
  note_disk(false);
  --writes_;
  if (block.pins == 0) leaving_bytes_ -= footprint(block);
  block.become(State::resident);
  if (block.lifted) {
    heap_->map(block.at, std::move(*block.lifted), Access::none);
    block.lifted.reset();
    --lifted_;
  }
  if (outcome.ok()) {
    block.dirty = false;
    block.outside = false;
    stats_.written_bytes += round_to_store(block.bytes);
  } else {
    ++broken_writes_;
    last_broken_write_ = std::move(outcome).error();
  }
  if (block.storage->dead) {
    finalize_if_idle(*block.storage);
  } else if (block.pins == 0) {
    if (block.dirty || std::exchange(block.stays, false)) {
      offer(block);
    } else {
      make_absent(block);
    }
  }
  announce();
  follow_schedule();
}

Result<void> Engine::start_fetch(Block& block, Access access, Priority priority) {
  Result<Frames> frames = heap_->take(block.bytes);
  if (!frames.ok()) return std::move(frames).error();
  note_peak();
  if (!block.has_content() || block.unfilled) {  // there is no content, or none that is wanted
    make_resident(block, std::move(frames).value(), Access::write);
    return {};
  }
  block.become(State::fetching);
  block.ahead = priority == Priority::prefetch;
  ++(block.ahead ? stats_.fetches_ahead : stats_.demand_fetches);
  if (block.outside) {
    start_gather(block, std::move(frames).value(), access, priority);
    return {};
  }
  note_disk(true);
  ++transfers_;
  // Read into frames that nobody else can see, and only then move them under the block: all of it
  // appears at once.
  auto shared = std::make_shared<Frames>(std::move(frames).value());
  Pieces pieces = shared->pieces(round_to_store(block.bytes), heap_->frame_sizes());
  store_.read(block.place.extent, std::move(pieces), priority,
              [this, &block, shared, access](Result<void> outcome) {
                fetched(block, std::move(*shared), access, std::move(outcome));
              });
  return {};
}

void Engine::fetched(Block& block, Frames&& frames, Access access, Result<void> outcome) {
  MutexLock lock(mutex_);
  --transfers_;
  note_disk(false);
  if (outcome.ok()) stats_.read_bytes += round_to_store(block.bytes);
  fetch_ended(block, std::move(frames), access, std::move(outcome));
}

void Engine::fetch_ended(Block& block, Frames&& frames, Access access, Result<void> outcome) {
  const bool early = std::exchange(block.ahead, false) && block.pins == 0;
  if (outcome.ok()) {
    make_resident(block, std::move(frames), access);
    if (block.outside && block.storage->outside->kept) block.dirty = true;  // the store lacks it
    block.early = early;
  } else {
    heap_->park(std::move(frames));
    block.become(State::away);
    block.failure = std::make_unique<Error>(std::move(outcome).error());
  }
  if (block.storage->dead) {
    finalize_if_idle(*block.storage);
  } else if (block.pins == 0 && block.state == State::resident) {
    offer(block);
  }
  announce();
}

void Engine::make_resident(Block& block, Frames&& frames, Access access) {
  if (access == Access::write) {
    block.storage->watch.reset();
    if (block.storage->outside) block.storage->outside->written = true;
  }
  block.access = block.storage->deferred.empty() ? access : Access::none;
  heap_->map(block.at, std::move(frames), block.access);
  block.become(State::resident);
  block.dirty = access == Access::write;
  stats_.resident.add(block.storage->traced.kind, footprint(block));
}

void Engine::make_absent(Block& block) {
  heap_->unmap(block.at, block.bytes);
  block.become(State::away);
  block.access = Access::none;
  stats_.resident.remove(block.storage->traced.kind, footprint(block));
}

void Engine::make_writable(Block& block) {
  block.storage->watch.reset();
  if (block.storage->outside) block.storage->outside->written = true;
  if (block.access != Access::write) {
    heap_->protect(block.at, block.bytes, Access::write);
    block.access = Access::write;
  }
  block.dirty = true;
}

void Engine::offer(Block& block) {
  if (!block.listed()) policy_->add(block);
}

void Engine::withdraw(Block& block) {
  if (block.listed()) policy_->remove(block);
}

void Engine::finalize_if_idle(Storage& storage) {
  for (const Block& block : storage.blocks) {
    if (block.pins > 0 || block.state == State::writing || block.state == State::fetching) return;
  }
  finalize(storage);
}

void Engine::finalize(Storage& storage) {
  const bool whole = storage.blocks.size() == 1 && storage.blocks.front().state == State::resident;
  for (Block& block : storage.blocks) {
    withdraw(block);
    if (!block.place.empty()) places_.free(block.place);
  }
  for (Block& block : storage.blocks) {
    if (block.state != State::resident) continue;
    if (whole) {
      if (block.access != Access::write) heap_->protect(block.at, block.bytes, Access::write);
      stats_.resident.remove(storage.traced.kind, footprint(block));
    } else {
      make_absent(block);
    }
  }
  if (whole) {
    heap_->retire(storage.at, storage.bytes);
  } else {
    heap_->release(storage.at, storage.bytes);
  }
  enter(storage, nullptr);
  --live_storages_;
  live_blocks_ -= storage.blocks.size();
  delete &storage;  // NOLINT(cppcoreguidelines-owning-memory): released in allocate()
}

}  // namespace bottomless
