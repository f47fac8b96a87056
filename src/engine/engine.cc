// The public calls: allocation, pins, charges. How blocks come and go is in residency.cc.
#include "engine/engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace bottomless {
namespace {

// Small enough that a few blocks of each operand of one operator fit, large enough that a disk is
// at full speed.
Bytes block_bytes_for(Bytes limit, Bytes large_frame) {
  return std::clamp(std::bit_floor(std::max<Bytes>(limit / 64, 1)), large_frame,
                    std::max(large_frame, 64_MiB));
}

}  // namespace

Pins::Pins(Pins&& other) noexcept
    : engine_(other.engine_), blocks_(std::exchange(other.blocks_, {})) {}

void Pins::release() noexcept {
  if (blocks_.empty()) return;
  MutexLock lock(engine_->mutex_);
  engine_->drop_pins(*this, 0);
  if (engine_->options_.eviction != Eviction::eagerly) return;
  engine_->evict_all_idle();
  while (engine_->writes_ > 0) engine_->stall();
}

Engine::Engine(const EngineOptions& options, std::unique_ptr<Heap> heap, Store& store,
               std::unique_ptr<EvictionPolicy> policy)
    : options_(options),
      block_bytes_(block_bytes_for(options.limit, heap->frame_sizes().large)),
      charge_step_(std::max<Bytes>(options.limit / 256, 64_KiB)),
      store_(store),
      heap_(std::move(heap)),
      policy_(std::move(policy)) {
  MutexLock lock(mutex_);
  heap_->set_budget(options_.limit - std::min(options_.limit, overhead()));
  note_peak();
}

Engine::~Engine() {
  MutexLock lock(mutex_);
  while (transfers_ > 0) changed_.wait(mutex_);
  for (Storage* storage : table_) {
    if (storage != nullptr) finalize(*storage);  // clears its entries
  }
}

Storage* Engine::find(const void* address) const {
  if (!heap_->contains(address)) return nullptr;
  const Bytes index = heap_->offset_of(address) /
                      heap_->frame_sizes().small;  // slots lie below: wraps to a huge index
  return index < table_.size() ? table_[index] : nullptr;
}

void Engine::enter(const Storage& storage, Storage* value) {
  const Bytes small = heap_->frame_sizes().small;
  const size_t first = heap_->offset_of(storage.at) / small;
  const size_t count = heap_->footprint(storage.bytes) / small;
  if (first + count > table_.size())
    table_.resize(std::max(first + count, table_.size() * 3 / 2), nullptr);
  std::fill_n(table_.begin() + static_cast<ptrdiff_t>(first), count, value);
}

Result<void*> Engine::allocate(Bytes bytes, Kind kind, Pins* pins, std::string_view who) {
  MutexLock lock(mutex_);
  if (Result<void> settled = settle_reserve(pins, who); !settled.ok())
    return std::move(settled).error();
  auto storage = std::make_unique<Storage>();
  storage->bytes = bytes;
  storage->kind = kind;
  storage->allocated_in = pins;
  std::byte* reused = heap_->available() >= heap_->footprint(bytes) ? heap_->reuse(bytes) : nullptr;
  storage->at = reused;
  if (reused == nullptr) {
    Result<std::byte*> reserved = heap_->reserve(bytes);
    if (!reserved.ok()) return std::move(reserved).error();
    storage->at = reserved.value();
  }
  storage->blocks.resize((bytes + block_bytes_ - 1) / block_bytes_);
  for (size_t i = 0; i < storage->blocks.size(); ++i) {
    Block& block = storage->blocks[i];
    block.storage = storage.get();
    block.at = storage->at + i * block_bytes_;
    block.bytes = std::min(block_bytes_, bytes - i * block_bytes_);
    if (reused == nullptr) continue;
    block.state = State::resident;
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
  Storage& entered = *storage.release();  // owned by the table from here on; finalize() deletes it
  if (reused == nullptr && pins != nullptr) {
    if (Result<void> filled = fill(entered, *pins, who); !filled.ok()) {
      finalize(entered);
      return std::move(filled).error();
    }
  }
  write_behind();
  return static_cast<void*>(entered.at);
}

// Makes a new storage resident, block by block, for the operation that is about to fill it.
Result<void> Engine::fill(Storage& storage, Pins& pins, std::string_view who) {
  const size_t before = pins.blocks_.size();
  for (Block& block : storage.blocks) {
    bool stepped_back = false;
    Result<void> ready =
        wait_for_room(footprint(block), &pins, Phase::allocating, who, stepped_back);
    if (ready.ok()) ready = start_fetch(block, Access::write);
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
  BOTTOMLESS_CHECK(storage != nullptr && storage->at == address && !storage->dead,
                   "a storage was freed twice");
  if (current != nullptr && storage->allocated_in == current && !current->blocks_.empty()) {
    std::erase_if(current->blocks_, [&](Block* block) {
      if (block->storage != storage) return false;
      drop_pin(*block);
      return true;
    });
    if (current->blocks_.empty()) --holders_;
  }
  storage->dead = true;
  for (Block& block : storage->blocks) withdraw(block);
  finalize_if_idle(*storage);
  changed_.notify_all();
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

void Engine::add_pin(Pins& pins, Block& block) {
  if (block.pins++ == 0) {
    withdraw(block);
    if (block.state == State::writing) leaving_bytes_ -= footprint(block);
  }
  if (pins.blocks_.empty()) ++holders_;
  pins.blocks_.push_back(&block);
}

void Engine::drop_pin(Block& block) {
  if (--block.pins > 0) return;
  if (block.state == State::writing) leaving_bytes_ += footprint(block);
  if (block.storage->dead) {
    finalize_if_idle(*block.storage);
  } else if (block.state == State::resident) {
    offer(block);
  }
}

void Engine::drop_pins(Pins& pins, size_t keep) {
  if (pins.blocks_.size() == keep) return;
  while (pins.blocks_.size() > keep) {
    Block* block = pins.blocks_.back();
    pins.blocks_.pop_back();
    drop_pin(*block);
  }
  if (pins.blocks_.empty()) --holders_;
  changed_.notify_all();
}

Result<void> Engine::pin(Pins& pins, std::span<const Need> needs, std::string_view who) {
  MutexLock lock(mutex_);
  for (;;) {
    bool stepped_back = false;
    Result<void> pinned = pin_once(pins, needs, who, stepped_back);
    if (!stepped_back) return pinned;
    stall();  // another operation needs the room first
  }
}

Result<void> Engine::pin_once(Pins& pins, std::span<const Need> needs, std::string_view who,
                              bool& stepped_back) {
  const size_t before = pins.blocks_.size();
  // Claim everything before waiting for anything, so that what is already here does not leave for
  // what is not.
  for (const Need& need : needs) {
    each_block(need, [&](Block& block) {
      add_pin(pins, block);
      if (block.pins == 1) block.failure.reset();
      return true;
    });
  }
  for (;;) {
    bool all_ready = true;
    Result<void> outcome;
    for (const Need& need : needs) {
      each_block(need, [&](Block& block) {
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
    stall();
  }
  write_behind();
  return {};
}

Result<bool> Engine::touch(const void* address, Access access) {
  {
    MutexLock lock(mutex_);
    if (find(address) == nullptr) return false;
    ++stats_.faults;
  }
  Pins pins(*this);
  const Need need{.address = address, .bytes = 1, .access = access};
  if (Result<void> pinned = pin(pins, {&need, 1}, "a memory access outside any operator");
      !pinned.ok()) {
    return std::move(pinned).error();
  }
  MutexLock lock(mutex_);
  drop_pins(pins, 0);  // and no eager eviction: the access that faulted is still to come
  return true;
}

Result<void> Engine::charge(Bytes bytes, const Pins* pins, std::string_view who) {
  charged_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
  if (charged() <= charge_reserve_.load(std::memory_order_relaxed)) return {};
  MutexLock lock(mutex_);
  Result<void> settled = settle_reserve(pins, who);
  if (!settled.ok()) discharge(bytes);
  return settled;
}

void Engine::discharge(Bytes bytes) noexcept {
  charged_.fetch_sub(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

Bytes Engine::charged() const {
  return static_cast<Bytes>(std::max<int64_t>(charged_.load(std::memory_order_relaxed), 0));
}

// Sets aside room for charges and records; lowers the heap's budget accordingly and waits until the
// heap is below it.
Result<void> Engine::settle_reserve(const Pins* pins, std::string_view who) {
  const Bytes reserve = charge_reserve_.load(std::memory_order_relaxed);
  const Bytes wanted = (charged() + charge_step_ - 1) / charge_step_ * charge_step_;
  if (wanted > reserve || wanted + 2 * charge_step_ < reserve) {
    charge_reserve_.store(wanted, std::memory_order_relaxed);
  }
  const Bytes aside = overhead() + charge_reserve_.load(std::memory_order_relaxed);
  heap_->set_budget(options_.limit - std::min(options_.limit, aside));
  bool stepped_back = false;
  Result<void> room = aside > options_.limit
                          ? Result<void>(too_small(0, pins, who))
                          : wait_for_room(0, pins, Phase::allocating, who, stepped_back);
  if (room.ok()) note_peak();
  return room;
}

void Engine::set_kind(const void* address, Kind kind) {
  MutexLock lock(mutex_);
  Storage* storage = find(address);
  if (storage == nullptr || storage->kind == kind) return;
  for (const Block& block : storage->blocks) {
    if (block.state != State::resident && block.state != State::writing) continue;
    stats_.resident.remove(storage->kind, footprint(block));
    stats_.resident.add(kind, footprint(block));
  }
  storage->kind = kind;
}

Bytes Engine::overhead() const {
  // Rounded up to steps of 64 KiB, so that the heap's budget does not change with every allocation.
  const Bytes records = live_blocks_ * sizeof(Block) + live_storages_ * sizeof(Storage) +
                        table_.capacity() * sizeof(void*);
  return options_.fixed_overhead + (records + 64_KiB) / 64_KiB * 64_KiB;
}

void Engine::note_peak() {
  const Bytes now = heap_->committed() + overhead() + charged();
  stats_.peak_bytes = std::max(stats_.peak_bytes, now);
}

EngineStats Engine::stats() const {
  MutexLock lock(mutex_);
  EngineStats stats = stats_;
  stats.limit_bytes = options_.limit;
  stats.overhead_bytes = overhead();
  stats.charged_bytes = charged();
  stats.live_storages = live_storages_;
  return stats;
}

uint64_t Engine::live_storages() const {
  MutexLock lock(mutex_);
  return live_storages_;
}

Bytes Engine::pinned_by(const Pins* pins) const {
  if (pins == nullptr) return 0;
  std::vector<Block*> distinct = pins->blocks_;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  Bytes total = 0;
  for (const Block* block : distinct) total += footprint(*block);
  return total;
}

Error Engine::too_small(Bytes bytes, const Pins* pins, std::string_view who) const {
  const Bytes aside = overhead() + charge_reserve_.load(std::memory_order_relaxed);
  const Bytes held = pinned_by(pins);
  return {Code::no_memory, "run " + std::string(who) + ": it needs " + format_bytes(held + bytes) +
                               " at once besides " + format_bytes(aside) +
                               " for small tensors and bookkeeping, but the limit is " +
                               format_bytes(options_.limit) + " (--memory); raise it to at least " +
                               format_bytes(held + bytes + aside)};
}

}  // namespace bottomless
