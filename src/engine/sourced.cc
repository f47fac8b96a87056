// Storages whose content others have, and content that others are given.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

Result<void*> Engine::allocate_from(std::shared_ptr<Source> source, Bytes bytes, Kind kind,
                                    Fetched fetched, std::string_view who) {
  auto outside = std::make_unique<Outside>(
      Outside{.source = std::move(source), .kept = fetched == Fetched::kept, .written = false});
  MutexLock lock(mutex_);
  return allocate(bytes, kind, nullptr, std::move(outside), who);
}

void Engine::start_gather(Block& block, Frames&& frames, Access access, Priority priority) {
  ++transfers_;
  auto shared = std::make_shared<Frames>(std::move(frames));
  Pieces pieces = shared->pieces(block.bytes, heap_->frame_sizes());
  block.storage->outside->source->fetch(
      static_cast<Bytes>(block.at - block.storage->at), block.bytes, std::move(pieces), priority,
      [this, &block, shared, access](Result<void> outcome) {
        MutexLock lock(mutex_);
        --transfers_;
        if (std::exchange(block.stale, false)) {
          heap_->park(std::move(*shared));
          block.ahead = false;
          block.become(State::away);
          if (block.storage->dead) finalize_if_idle(*block.storage);
          announce();
          return;
        }
        if (outcome.ok()) stats_.gathered_bytes += block.bytes;
        fetch_ended(block, std::move(*shared), access, std::move(outcome));
      });
}

void Engine::invalidate(const void* address) {
  MutexLock lock(mutex_);
  Storage* storage = find(address);
  if (storage == nullptr || !storage->outside) return;
  storage->watch.reset();
  for (Block& block : storage->blocks) {
    const auto in_use = [&]() BOTTOMLESS_REQUIRES(mutex_) {
      return block.pins > 0 || block.state == State::writing ||
             (block.state == State::fetching && !block.outside);  // from the store
    };
    while (in_use()) stall();
    withdraw(block);
    if (block.state == State::resident) make_absent(block);
    if (block.state == State::fetching) block.stale = true;
    if (!block.place.empty()) places_.free(std::exchange(block.place, {}));
    block.failure.reset();
    block.dirty = false;
    block.early = false;
    block.outside = true;
  }
  storage->outside->written = false;
  storage->traced.renewed = true;
  announce();
}

bool Engine::written_here(const void* address) const {
  MutexLock lock(mutex_);
  const Storage* storage = find(address);
  return storage != nullptr && storage->outside && storage->outside->written;
}

Result<Bytes> Engine::read_bypassing_heap(const void* address, Bytes bytes,
                                          std::span<std::byte> into, Wanted wanted) {
  MutexLock lock(mutex_);
  const Need need{.address = address, .bytes = bytes, .access = Access::read};
  if (Result<void> flushed = flush_deferred_for({&need, 1}); !flushed.ok())
    return std::move(flushed).error();
  Storage* storage = find(address);
  if (storage == nullptr || storage->dead)
    return Error{Code::invalid_argument, "copy a tensor out: it has been freed"};
  const auto first = static_cast<Bytes>(static_cast<const std::byte*>(address) - storage->at);
  Block& block = storage->blocks[std::min(first / block_bytes_, storage->blocks.size() - 1)];
  const auto from = first - static_cast<Bytes>(block.at - storage->at);
  const Bytes part = std::min(bytes, block.bytes - from);
  if (wanted == Wanted::as_it_came) {
    if (block.state == State::fetching)
      return Error{Code::invalid_argument, "copy a tensor out: it is on its way"};
    if (storage->outside && storage->outside->written)
      return Error{Code::invalid_argument, "copy a tensor out: it was written to here"};
  }
  // A pin keeps the block where it is: what is here stays, and the place of what is away is not written to.
  Pins pins(*this);
  add_pin(pins, block);
  while (block.state == State::fetching || block.lifted) stall();
  Result<void> copied;
  if (block.state == State::away) {
    copied = read_extent(block, from, part, into);
  } else {
    if (block.state == State::resident) grant(block, Access::read);
    ++block.copying;
    mutex_.unlock();
    std::memcpy(into.data(), block.at + from, part);
    mutex_.lock();
    --block.copying;
  }
  drop_pins(pins, 0);
  if (!copied.ok()) return std::move(copied).error();
  return part;
}

Result<void> Engine::read_extent(const Block& block, Bytes from, Bytes bytes,
                                 std::span<std::byte> into) {
  if (block.outside)
    return Error{Code::invalid_argument, "copy a tensor out: its content is elsewhere"};
  if (block.place.empty()) return {};  // it has no content
  const Bytes aligned = from / Store::kAlignment * Store::kAlignment;
  Extent part = block.place.extent;
  part.offset += aligned;
  part.bytes = round_to_store(from + bytes) - aligned;
  std::optional<Result<void>> outcome;
  note_disk(true);
  ++transfers_;
  store_.read(part, {into.first(part.bytes)}, Priority::demand, [&](Result<void> ended) {
    MutexLock lock(mutex_);
    --transfers_;
    note_disk(false);
    outcome = std::move(ended);
    announce();
  });
  while (!outcome) stall();
  if (!outcome->ok()) return std::move(*outcome);
  stats_.read_bytes += part.bytes;
  if (from != aligned) std::memmove(into.data(), into.data() + (from - aligned), bytes);
  return {};
}

}  // namespace bottomless
