// Storages: made, counted, freed; and what follows when a transfer of one of their blocks has ended.
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace bottomless {

namespace {

// Set aside for traces and schedules, so that they never take more than was granted.
Bytes planning_bytes_for(const EngineOptions& options) {
  if (options.movement != Movement::planned) return 0;
  return std::clamp<Bytes>(options.limit / 64, std::min<Bytes>(options.limit / 32, 64_KiB),
                           kMostPlanning);
}

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<Heap> heap, Store& store,
               std::unique_ptr<EvictionPolicy> policy)
    : options_(options),
      planning_bytes_(planning_bytes_for(options)),
      heap_(std::move(heap)),
      changes_(mutex_, *options.clock, options.timeout),
      table_(*heap_, block_bytes_for(options.limit, heap_->frame_sizes().large)),
      budget_(options.limit, options.fixed_overhead + planning_bytes_, *heap_, table_),
      recorder_(options.recorded, planning_bytes_ / 8),
      prefetcher_(planning_bytes_),
      mover_(mutex_, *heap_, store, table_.block_bytes(), options.spare_places, budget_, changes_,
             recorder_, *this),
      room_(options_, *heap_, budget_, mover_, prefetcher_, changes_, std::move(policy)) {}

Engine::~Engine() {
  MutexLock lock(mutex_);
  room_.wait_for_io();
  table_.drain([&](Storage& storage) BOTTOMLESS_NOT_ANALYSED { remove(storage); });
}

Result<void*> Engine::allocate(Bytes bytes, Kind kind, Pins* pins, std::string_view who) {
  MutexLock lock(mutex_);
  return allocate(bytes, kind, pins, nullptr, who);
}

Result<void*> Engine::allocate(Bytes bytes, Kind kind, Pins* pins, std::unique_ptr<Remote> remote,
                               std::string_view who) {
  budget_.relax(2 * budget_.charge_step());
  // Only a storage of one block: the frames of several are not those of one as large as all of
  // them.
  const bool reusable =
      !remote && bytes <= table_.block_bytes() && heap_->available() >= heap_->footprint(bytes);
  std::byte* reused = reusable ? heap_->reuse(bytes) : nullptr;
  std::byte* at = reused;
  if (reused == nullptr) {
    Result<std::byte*> range = heap_->reserve(bytes);
    if (!range.ok()) return std::move(range).error();
    at = range.value();
  }
  const Bytes records = table_.record_bytes_for(at, bytes, remote.get());
  if (Result<void> reserved = room_.reserve(0, records, pins, who); !reserved.ok()) {
    if (reused != nullptr) {
      heap_->retire(at, bytes);
    } else {
      heap_->release(at, bytes);
    }
    return std::move(reserved).error();
  }
  Storage& storage = table_.add(at, bytes, kind, std::move(remote));
  storage.allocated_in = pins == nullptr ? 0 : pins->id_;
  if (reused != nullptr) {
    Block& block = storage.blocks.front();
    mover_.add_resident(block, kind);
    if (pins != nullptr) {
      add_pin(*pins, block);
    } else {
      room_.offer(block);
    }
  }
  budget_.note_peak();
  prefetcher_.born(storage);
  if (reused == nullptr && pins != nullptr) {
    if (Result<void> filled = fill(storage, *pins, who); !filled.ok()) {
      prefetcher_.died(storage);
      remove(storage);
      return std::move(filled).error();
    }
  }
  if (pins != nullptr) {
    for (Block& block : storage.blocks)
      prefetcher_.uses(block, {.writes = true, .fetches = false, .born = true});
  }
  room_.write_behind();
  follow_schedule();
  return static_cast<void*>(storage.at);
}

// Makes a new storage resident, block by block, for the operation that is about to fill it.
Result<void> Engine::fill(Storage& storage, Pins& pins, std::string_view who) {
  const size_t before = pins.blocks_.size();
  Bytes wanted = 0;
  for (const Block& block : storage.blocks) wanted += mover_.footprint(block);
  if (Result<void> fits = room_.check_fits(wanted, &pins, who); !fits.ok()) return fits;
  for (Block& block : storage.blocks) {
    Result<Room::Outcome> room =
        room_.wait_for(mover_.footprint(block), &pins, Room::Purpose::allocate, who);
    Result<void> ready = room.ok() ? mover_.start_fetch(block, Access::write, Priority::demand)
                                   : Result<void>(std::move(room).error());
    if (!ready.ok()) {
      drop_pins(pins, before);
      return ready;
    }
    add_pin(pins, block);
  }
  return {};
}

void Engine::free(void* address, Pins* current) noexcept {
  MutexLock lock(mutex_);
  Storage* storage = table_.find(address);
  BOTTOMLESS_CHECK(
      storage != nullptr && storage->at == address && !storage->dead && !storage->dropped,
      "a storage was freed twice");
  if (current != nullptr && storage->allocated_in == current->id_ && !current->blocks_.empty()) {
    std::erase_if(current->blocks_, [&](Block* block) BOTTOMLESS_NOT_ANALYSED {
      if (block->storage != storage) return false;
      drop_pin(*block);
      return true;
    });
    if (current->blocks_.empty()) room_.contention().holds_no_more();
  }
  if (storage->deferred.empty()) {
    end_life(*storage);
  } else {
    storage->dropped = true;
  }
}

void Engine::end_life(Storage& storage) {
  storage.dead = true;
  prefetcher_.died(storage);
  for (Block& block : storage.blocks) room_.withdraw(block);
  remove_if_idle(storage);
  changes_.announce();
}

void Engine::remove_if_idle(Storage& storage) {
  for (const Block& block : storage.blocks) {
    if (block.pins > 0 || block.in_transfer()) return;
  }
  remove(storage);
}

void Engine::remove(Storage& storage) {
  for (Block& block : storage.blocks) room_.withdraw(block);
  mover_.release(storage);
  table_.remove(storage);
}

void Engine::fetch_ended(Block& block) {
  if (block.storage->dead) {
    remove_if_idle(*block.storage);
  } else if (block.pins == 0 && block.is_resident()) {
    room_.offer(block);
  }
  changes_.announce();
}

void Engine::write_ended(Block& block) {
  if (block.storage->dead) {
    remove_if_idle(*block.storage);
  } else if (block.pins == 0) {
    if (block.state == State::dirty || std::exchange(block.keep_after_write, false)) {
      room_.offer(block);
    } else {
      mover_.drop(block);
    }
  }
  changes_.announce();
  follow_schedule();
}

Result<void> Engine::charge(Bytes bytes, const Pins* pins, std::string_view who) {
  const Bytes taken = budget_.take_slack(bytes);
  if (taken == bytes) return {};
  MutexLock lock(mutex_);
  Result<void> reserved = room_.reserve(bytes - taken, 0, pins, who);
  if (!reserved.ok()) budget_.discharge(taken);
  return reserved;
}

void Engine::discharge(Bytes bytes) noexcept { budget_.discharge(bytes); }

bool Engine::too_small_to_manage(Bytes bytes) const {
  if (bytes >= 64_MiB) return false;
  MutexLock lock(mutex_);
  return heap_->too_crowded_for(bytes);
}

void Engine::set_kind(const void* address, Kind kind) {
  MutexLock lock(mutex_);
  Storage* storage = table_.find(address);
  if (storage == nullptr || storage->traced.kind == kind) return;
  mover_.set_kind(*storage, kind);
  prefetcher_.labelled(*storage);
}

EngineStats Engine::stats() const {
  MutexLock lock(mutex_);
  const MoverStats& moved = mover_.stats();
  return {.limit_bytes = options_.limit,
          .peak_bytes = budget_.peak(),
          .read_bytes = moved.read_bytes,
          .written_bytes = moved.written_bytes,
          .gathered_bytes = moved.gathered_bytes,
          .overhead_bytes = budget_.overhead(),
          .faults = faults_,
          .evictions = moved.evictions,
          .demand_fetches = moved.demand_fetches,
          .prefetches = moved.prefetches,
          .planned_hits = planned_hits_,
          .plan_departures = prefetcher_.departures(),
          .schedules_made = prefetcher_.schedules_made(),
          .deferred = deferrals_,
          .stall_seconds = changes_.stall_seconds(),
          .resident = moved.resident,
          .charged_bytes = budget_.charged(),
          .live_storages = table_.storages()};
}

void Engine::wait_for_io() {
  MutexLock lock(mutex_);
  room_.wait_for_io();
}

uint64_t Engine::live_storages() const {
  MutexLock lock(mutex_);
  return table_.storages();
}

}  // namespace bottomless
