#include "engine/mover.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace bottomless {

Mover::Mover(Mutex& mutex, Heap& heap, Store& store, Bytes block_bytes, size_t spare_places,
             Budget& budget, Changes& changes, StepRecorder& recorder, Owner& owner)
    : mutex_(mutex),
      heap_(heap),
      store_(store),
      block_bytes_(block_bytes),
      places_(store, block_bytes, spare_places),
      budget_(budget),
      changes_(changes),
      recorder_(recorder),
      owner_(owner) {}

void Mover::begin_disk_transfer() {
  if (disk_transfers_++ == 0) recorder_.disk_begins(seconds_now());
}

void Mover::end_disk_transfer() {
  if (--disk_transfers_ == 0) recorder_.disk_ends(seconds_now());
}

void Mover::protect(Block& block, Access access) {
  heap_.protect(block.at, block.bytes, access);
  block.access = access;
}

Result<void> Mover::start_fetch(Block& block, Access access, Priority priority) {
  block.failure.reset();
  Result<Frames> frames = heap_.take(block.bytes);
  if (!frames.ok()) return std::move(frames).error();
  budget_.note_peak();
  if (!block.has_content() || block.unfilled) {
    make_resident(block, std::move(frames).value(), Access::write);
    return {};
  }
  const bool prefetch = priority == Priority::prefetch;
  block.become(prefetch ? State::prefetching : State::fetching);
  ++(prefetch ? stats_.prefetches : stats_.demand_fetches);
  if (block.remote) {
    start_remote_fetch(block, std::move(frames).value(), access, priority);
    return {};
  }
  begin_disk_transfer();
  // Read into frames that nobody else can see, and only then move them under the block: all of it
  // appears at once.
  auto shared = std::make_shared<Frames>(std::move(frames).value());
  Pieces pieces = shared->pieces(round_to_store(block.bytes), heap_.frame_sizes());
  store_.read(block.place.extent, std::move(pieces), priority,
              [this, &block, shared, access](Result<void> outcome) {
                MutexLock lock(mutex_);
                end_disk_transfer();
                if (outcome.ok()) stats_.read_bytes += round_to_store(block.bytes);
                fetched(block, std::move(*shared), access, std::move(outcome));
              });
  return {};
}

void Mover::start_remote_fetch(Block& block, Frames&& frames, Access access, Priority priority) {
  ++remote_transfers_;
  auto shared = std::make_shared<Frames>(std::move(frames));
  Pieces pieces = shared->pieces(block.bytes, heap_.frame_sizes());
  block.storage->remote->source->fetch(
      static_cast<Bytes>(block.at - block.storage->at), block.bytes, std::move(pieces), priority,
      [this, &block, shared, access](Result<void> outcome) {
        MutexLock lock(mutex_);
        --remote_transfers_;
        if (outcome.ok() && block.state != State::discarding) stats_.gathered_bytes += block.bytes;
        fetched(block, std::move(*shared), access, std::move(outcome));
      });
}

void Mover::fetched(Block& block, Frames&& frames, Access access, Result<void> outcome) {
  if (outcome.ok() && block.state != State::discarding) {
    const bool unused = block.state == State::prefetching && block.pins == 0;
    make_resident(block, std::move(frames), access);
    block.prefetched_unused = unused;
  } else {
    heap_.park(std::move(frames));
    if (block.state != State::discarding)
      block.failure = std::make_unique<Error>(std::move(outcome).error());
    block.become(State::absent);
  }
  owner_.fetch_ended(block);
}

void Mover::raise_priority(Block& block) {
  block.become(State::fetching);
  if (block.remote) {
    block.storage->remote->source->raise_priority(static_cast<Bytes>(block.at - block.storage->at));
  } else {
    store_.raise_priority(block.place.extent);
  }
}

Result<void> Mover::evict(Block& block, Places::Leave leave, Priority priority) {
  if (block.state == State::clean) {
    drop(block);
    ++stats_.evictions;
    return {};
  }
  if (block.place.empty() || !places_.may_write(block.place)) {
    Result<Place> place = places_.allocate(block.bytes, leave);
    if (!place.ok()) return std::move(place).error();
    if (!block.place.empty()) places_.free(block.place);
    block.place = place.value();
  }
  start_write(block, priority);
  ++stats_.evictions;
  return {};
}

void Mover::start_write(Block& block, Priority priority) {
  block.become(State::writing);
  // From here on a write by anybody faults and waits: what reaches the disk is one consistent version. Written ahead of
  // need, it is not expected back soon, and while it is not mapped work on it can be deferred.
  const bool hidden = priority == Priority::prefetch || block.access == Access::none;
  Pieces pieces{{block.at, round_to_store(block.bytes)}};
  if (!hidden) {
    protect(block, Access::read);
  } else {
    block.access = Access::none;
    ++hidden_writes_;
    block.hidden_frames = std::make_shared<Frames>(heap_.lift(block.at, block.bytes));
    pieces = block.hidden_frames->pieces(round_to_store(block.bytes), heap_.frame_sizes());
  }
  leaving_bytes_ += footprint(block);
  begin_disk_transfer();
  ++writes_;
  store_.write(block.place.extent, std::move(pieces), priority,
               [this, &block](Result<void> outcome) { written(block, std::move(outcome)); });
}

void Mover::written(Block& block, Result<void> outcome) {
  MutexLock lock(mutex_);
  end_disk_transfer();
  --writes_;
  if (block.pins == 0) leaving_bytes_ -= footprint(block);
  if (block.hidden_frames) {
    heap_.map(block.at, std::move(*block.hidden_frames), Access::none);
    block.hidden_frames.reset();
    --hidden_writes_;
  }
  if (outcome.ok()) {
    block.become(State::clean);
    block.remote = false;
    stats_.written_bytes += round_to_store(block.bytes);
  } else {
    block.become(State::dirty);
    ++failed_writes_;
    last_failed_write_ = std::move(outcome).error();
  }
  owner_.write_ended(block);
}

void Mover::note_write(Storage& storage) {
  storage.watch.reset();
  if (storage.remote) storage.remote->written = true;
}

void Mover::make_resident(Block& block, Frames&& frames, Access access) {
  if (access == Access::write) note_write(*block.storage);
  block.access = block.storage->deferred.empty() ? access : Access::none;
  heap_.map(block.at, std::move(frames), block.access);
  const bool unsaved = block.remote && block.storage->remote->kept;  // the store lacks it
  block.become(access == Access::write || unsaved ? State::dirty : State::clean);
  stats_.resident.add(block.storage->traced.kind, footprint(block));
}

void Mover::drop(Block& block) {
  heap_.unmap(block.at, block.bytes);
  block.become(State::absent);
  block.access = Access::none;
  stats_.resident.remove(block.storage->traced.kind, footprint(block));
}

void Mover::add_resident(Block& block, Kind kind) {
  block.become(State::dirty);
  block.access = Access::write;
  stats_.resident.add(kind, footprint(block));
}

void Mover::forget_place(Block& block) {
  if (!block.place.empty()) places_.free(std::exchange(block.place, {}));
}

void Mover::grant(Block& block, Access access) {
  if (access == Access::write) {
    note_write(*block.storage);
    if (block.access != Access::write) protect(block, Access::write);
    if (block.state == State::clean) block.become(State::dirty);
  } else if (block.access == Access::none) {
    const bool watched = block.storage->watch || block.storage->remote;
    protect(block, block.state == State::dirty && !watched ? Access::write : Access::read);
  }
}

void Mover::hide(Storage& storage) {
  for (Block& block : storage.blocks) {
    if (!block.is_resident() || block.access == Access::none || block.pins > 0) continue;
    protect(block, Access::none);
  }
}

void Mover::make_read_only(Storage& storage) {
  for (Block& block : storage.blocks) {
    if (block.is_resident() && block.access == Access::write) protect(block, Access::read);
  }
}

void Mover::release(Storage& storage) {
  for (Block& block : storage.blocks) forget_place(block);
  Block& first = storage.blocks.front();
  if (storage.blocks.size() == 1 && first.is_resident()) {
    if (first.access != Access::write) protect(first, Access::write);
    stats_.resident.remove(storage.traced.kind, footprint(first));
    heap_.retire(storage.at, storage.bytes);
    return;
  }
  for (Block& block : storage.blocks) {
    if (block.is_resident()) drop(block);
  }
  heap_.release(storage.at, storage.bytes);
}

void Mover::set_kind(Storage& storage, Kind kind) {
  for (const Block& block : storage.blocks) {
    if (!block.in_memory()) continue;
    stats_.resident.remove(storage.traced.kind, footprint(block));
    stats_.resident.add(kind, footprint(block));
  }
  storage.traced.kind = kind;
}

Result<void> Mover::read_extent(const Block& block, Bytes from, Bytes bytes,
                                std::span<std::byte> into) {
  const Bytes aligned = from / Store::kAlignment * Store::kAlignment;
  Extent part = block.place.extent;
  part.offset += aligned;
  part.bytes = round_to_store(from + bytes) - aligned;
  std::optional<Result<void>> outcome;
  begin_disk_transfer();
  store_.read(part, {into.first(part.bytes)}, Priority::demand, [&](Result<void> ended) {
    MutexLock lock(mutex_);
    end_disk_transfer();
    outcome = std::move(ended);
    changes_.announce();
  });
  while (!outcome) changes_.wait();
  if (!outcome->ok()) return std::move(*outcome);
  stats_.read_bytes += part.bytes;
  if (from != aligned) std::memmove(into.data(), into.data() + (from - aligned), bytes);
  return {};
}

bool Mover::serve_in_child(Block& block, Access access) noexcept {
  if (block.in_memory()) {  // a copy of the parent's memory, and the child's own to write
    heap_.protect(block.at, block.bytes, access);
  } else if (!heap_.put_copy(block.at, block.bytes, [&](std::byte* copy) {
               if (block.remote) return false;  // a child cannot ask the source
               return block.place.empty() ||
                      store_.read_in_child(block.place.extent, {copy, round_to_store(block.bytes)});
             })) {
    return false;
  }
  if (!block.is_resident()) block.become(State::dirty);
  return true;
}

}  // namespace bottomless
