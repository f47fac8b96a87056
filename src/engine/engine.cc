// Storages: made, found, counted, freed. Pins are in pinning.cc, how blocks come and go in
// residency.cc.
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
      block_bytes_(block_bytes_for(options.limit, heap->frame_sizes().large)),
      charge_step_(std::max<Bytes>(options.limit / 256, 64_KiB)),
      store_(store),
      places_(store, block_bytes_, options.spare_places),
      heap_(std::move(heap)),
      policy_(std::move(policy)),
      prefetcher_(planning_bytes_) {
  MutexLock lock(mutex_);
  records_reserve_ = overhead();
  fit_heap();
  note_peak();
}

Engine::~Engine() {
  MutexLock lock(mutex_);
  finish_transfers();
  for (Storage* storage : table_) {
    if (storage != nullptr) finalize(*storage);  // clears its entries
  }
}

Storage* Engine::find(const void* address) const {
  if (!heap_->contains(address)) return nullptr;
  // Slots lie below: their index wraps to a huge one.
  const Bytes index = heap_->offset_of(address) / Heap::kGranule;
  return index < table_.size() ? table_[index] : nullptr;
}

size_t Engine::table_entries_for(const std::byte* at, Bytes bytes) const {
  const size_t end =
      (heap_->offset_of(at) + heap_->footprint(bytes) + Heap::kGranule - 1) / Heap::kGranule;
  return end <= table_.size() ? table_.size() : std::max(end, table_.size() * 3 / 2);
}

void Engine::enter(const Storage& storage, Storage* value) {
  const size_t first = heap_->offset_of(storage.at) / Heap::kGranule;
  const size_t count = (heap_->footprint(storage.bytes) + Heap::kGranule - 1) / Heap::kGranule;
  const size_t entries = table_entries_for(storage.at, storage.bytes);
  table_.reserve(entries);  // exactly that: resize() alone would double it
  table_.resize(entries, nullptr);
  std::fill_n(table_.begin() + static_cast<ptrdiff_t>(first), count, value);
}

Result<void*> Engine::allocate(Bytes bytes, Kind kind, Pins* pins, std::string_view who) {
  MutexLock lock(mutex_);
  return allocate(bytes, kind, pins, nullptr, who);
}

Result<void*> Engine::allocate(Bytes bytes, Kind kind, Pins* pins, std::unique_ptr<Outside> outside,
                               std::string_view who) {
  relax_reserves(2 * charge_step_);
  // Only a storage of one block: the frames of several are not those of one as large as all of
  // them.
  const bool reusable =
      !outside && bytes <= block_bytes_ && heap_->available() >= heap_->footprint(bytes);
  std::byte* reused = reusable ? heap_->reuse(bytes) : nullptr;
  std::byte* at = reused;
  if (reused == nullptr) {
    Result<std::byte*> reserved = heap_->reserve(bytes);
    if (!reserved.ok()) return std::move(reserved).error();
    at = reserved.value();
  }
  const size_t block_count = (bytes + block_bytes_ - 1) / block_bytes_;
  const size_t new_entries = table_entries_for(at, bytes) - table_.size();
  const Bytes records = sizeof(Storage) + (outside ? sizeof(Outside) : 0) +
                        block_count * sizeof(Block) + new_entries * sizeof(Storage*);
  if (Result<void> aside = set_aside(0, records, pins, who); !aside.ok()) {
    if (reused != nullptr) {
      heap_->retire(at, bytes);
    } else {
      heap_->release(at, bytes);
    }
    return std::move(aside).error();
  }
  auto storage = std::make_unique<Storage>();
  storage->at = at;
  storage->bytes = bytes;
  storage->allocated_in = pins == nullptr ? 0 : pins->id_;
  storage->outside = std::move(outside);
  storage->blocks.resize(block_count);
  for (size_t i = 0; i < storage->blocks.size(); ++i) {
    Block& block = storage->blocks[i];
    block.storage = storage.get();
    block.at = storage->at + i * block_bytes_;
    block.bytes = std::min(block_bytes_, bytes - i * block_bytes_);
    block.outside = storage->outside != nullptr;
    if (reused == nullptr) continue;
    block.become(State::resident);
    block.access = Access::write;
    block.dirty = true;
    stats_.resident.add(kind, footprint(block));
    if (pins != nullptr) {
      add_pin(*pins, block);
    } else {
      offer(block);
    }
  }
  enter(*storage, storage.get());
  ++live_storages_;
  live_blocks_ += storage->blocks.size();
  note_peak();
  storage->traced.kind = kind;
  storage->traced.blocks = static_cast<uint32_t>(block_count);
  storage->traced.block_bytes = footprint(storage->blocks.front());
  storage->traced.last_bytes = footprint(storage->blocks.back());
  prefetcher_.born(*storage);
  Storage& entered = *storage.release();  // owned by the table from here on; finalize() deletes it
  if (reused == nullptr && pins != nullptr) {
    if (Result<void> filled = fill(entered, *pins, who); !filled.ok()) {
      prefetcher_.died(entered);
      finalize(entered);
      return std::move(filled).error();
    }
  }
  if (pins != nullptr) {
    for (Block& block : entered.blocks)
      prefetcher_.uses(block, {.writes = true, .fetches = false, .born = true});
  }
  write_behind();
  follow_schedule();
  return static_cast<void*>(entered.at);
}

// Makes a new storage resident, block by block, for the operation that is about to fill it.
Result<void> Engine::fill(Storage& storage, Pins& pins, std::string_view who) {
  const size_t before = pins.blocks_.size();
  Bytes wanted = 0;
  for (const Block& block : storage.blocks) wanted += footprint(block);
  // What can never fit is refused before anything has to leave for it.
  if (heap_->in_use() + wanted > heap_->budget()) {
    const Bytes at_once = pinned_by(&pins) + wanted;
    if (at_once > heap_->budget()) relax_reserves(0);
    if (at_once > heap_->budget()) return too_small(wanted, &pins, who);
  }
  for (Block& block : storage.blocks) {
    bool stepped_back = false;
    Result<void> ready =
        wait_for_room(footprint(block), &pins, Phase::allocating, who, stepped_back);
    if (ready.ok()) ready = start_fetch(block, Access::write, Priority::demand);
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
  Storage* storage = find(address);
  BOTTOMLESS_CHECK(
      storage != nullptr && storage->at == address && !storage->dead && !storage->dropped,
      "a storage was freed twice");
  if (current != nullptr && storage->allocated_in == current->id_ && !current->blocks_.empty()) {
    std::erase_if(current->blocks_, [&](Block* block) BOTTOMLESS_REQUIRES(mutex_) {
      if (block->storage != storage) return false;
      drop_pin(*block);
      return true;
    });
    if (current->blocks_.empty()) --holders_;
  }
  if (storage->deferred.empty()) {
    let_die(*storage);
  } else {
    storage->dropped = true;
  }
}

void Engine::let_die(Storage& storage) {
  storage.dead = true;
  prefetcher_.died(storage);
  for (Block& block : storage.blocks) withdraw(block);
  finalize_if_idle(storage);
  announce();
}

bool Engine::too_small_to_manage(Bytes bytes) const {
  if (bytes >= 64_MiB) return false;
  MutexLock lock(mutex_);
  return heap_->too_crowded_for(bytes);
}

void Engine::set_kind(const void* address, Kind kind) {
  MutexLock lock(mutex_);
  Storage* storage = find(address);
  if (storage == nullptr || storage->traced.kind == kind) return;
  for (const Block& block : storage->blocks) {
    if (block.state != State::resident && block.state != State::writing) continue;
    stats_.resident.remove(storage->traced.kind, footprint(block));
    stats_.resident.add(kind, footprint(block));
  }
  storage->traced.kind = kind;
  prefetcher_.labelled(*storage);
}

EngineStats Engine::stats() const {
  MutexLock lock(mutex_);
  EngineStats stats = stats_;
  stats.limit_bytes = options_.limit;
  stats.overhead_bytes = overhead();
  stats.charged_bytes = charged();
  stats.live_storages = live_storages_;
  stats.plan_departures = prefetcher_.departures();
  stats.schedules_made = prefetcher_.schedules_made();
  return stats;
}

void Engine::wait_for_io() {
  MutexLock lock(mutex_);
  finish_transfers();
}

uint64_t Engine::live_storages() const {
  MutexLock lock(mutex_);
  return live_storages_;
}

}  // namespace bottomless
