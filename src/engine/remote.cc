// Storages whose content others have, and content that others are given.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

Result<void*> Engine::allocate_from(std::shared_ptr<Source> source, Bytes bytes, Kind kind,
                                    Fetched fetched, std::string_view who) {
  auto remote = std::make_unique<Remote>(
      Remote{.source = std::move(source), .kept = fetched == Fetched::kept, .written = false});
  MutexLock lock(mutex_);
  return allocate(bytes, kind, nullptr, std::move(remote), who);
}

void Engine::invalidate(const void* address) {
  MutexLock lock(mutex_);
  Storage* storage = table_.find(address);
  if (storage == nullptr || !storage->remote) return;
  storage->watch.reset();
  for (Block& block : storage->blocks) {
    const auto in_use = [&] {
      const bool from_store = block.is_arriving() && !block.remote;
      return block.pins > 0 || block.state == State::writing || from_store;
    };
    while (in_use()) changes_.wait();
    room_.withdraw(block);
    if (block.is_resident()) mover_.drop(block);
    if (block.is_arriving() && block.state != State::discarding) Mover::discard(block);
    mover_.forget_place(block);
    block.failure.reset();
    block.prefetched_unused = false;
    block.remote = true;
  }
  storage->remote->written = false;
  storage->traced.renewed = true;
  changes_.announce();
}

bool Engine::written_here(const void* address) const {
  MutexLock lock(mutex_);
  const Storage* storage = table_.find(address);
  return storage != nullptr && storage->remote && storage->remote->written;
}

Result<Bytes> Engine::read_bypassing_heap(const void* address, Bytes bytes,
                                          std::span<std::byte> into, Wanted wanted) {
  MutexLock lock(mutex_);
  const Need need{.address = address, .bytes = bytes, .access = Access::read};
  if (Result<void> flushed = flush_until_stable({&need, 1}); !flushed.ok())
    return std::move(flushed).error();
  Storage* storage = table_.find(address);
  if (storage == nullptr || storage->dead)
    return Error{Code::invalid_argument, "copy a tensor out: it has been freed"};
  Block& block = table_.block_at(*storage, address);
  const auto from = static_cast<Bytes>(static_cast<const std::byte*>(address) - block.at);
  const Bytes part = std::min(bytes, block.bytes - from);
  if (wanted == Wanted::as_it_came) {
    if (block.is_arriving())
      return Error{Code::invalid_argument, "copy a tensor out: it is on its way"};
    if (storage->remote && storage->remote->written)
      return Error{Code::invalid_argument, "copy a tensor out: it was written to here"};
  }
  // A pin keeps the block where it is: what is here stays, and the place of what is absent is not written to.
  Pins pins(*this);
  add_pin(pins, block);
  while (block.is_arriving() || block.hidden_frames) changes_.wait();
  Result<void> copied;
  if (block.state == State::absent) {
    if (block.remote) {
      copied = Error{Code::invalid_argument, "copy a tensor out: its content is elsewhere"};
    } else if (!block.place.empty()) {
      copied = mover_.read_extent(block, from, part, into);
    }
  } else {
    if (block.is_resident()) mover_.grant(block, Access::read);
    ++block.readers;
    mutex_.unlock();
    std::memcpy(into.data(), block.at + from, part);
    mutex_.lock();
    --block.readers;
  }
  drop_pins(pins, 0);
  if (!copied.ok()) return std::move(copied).error();
  return part;
}

}  // namespace bottomless
