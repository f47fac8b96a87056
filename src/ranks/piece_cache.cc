#include "ranks/piece_cache.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace bottomless {

struct PieceCache::Entry {
  struct Free {
    void operator()(std::byte* at) const { std::free(at); }  // NOLINT: of aligned_alloc
  };
  enum class State { empty, reading, ready, failed };

  Name name;
  State state = State::empty;
  unsigned users = 0;
  uint64_t last_used = 0;
  int askers = 0;  // still to come
  Bytes bytes = 0;
  std::optional<Error> failure;
  std::unique_ptr<std::byte, Free> buffer;
};

PieceCache::PieceCache(Bytes piece_bytes) : piece_bytes_(piece_bytes) {}

Result<void> PieceCache::reserve(size_t pieces) {
  const Bytes room = Engine::bypass_buffer_bytes(piece_bytes_);
  MutexLock lock(mutex_);
  for (size_t i = 0; i < pieces; ++i) {
    auto entry = std::make_unique<Entry>();
    entry->buffer.reset(static_cast<std::byte*>(std::aligned_alloc(Store::kAlignment, room)));
    if (!entry->buffer)
      return Error{Code::no_memory, "read for other ranks: no memory for " +
                                        std::to_string(pieces) + " buffers of " +
                                        format_bytes(room)};
    entries_.push_back(std::move(entry));
  }
  return {};
}

PieceCache::~PieceCache() = default;

PieceCache::Piece::~Piece() {
  if (entry_ != nullptr) cache_->release(*entry_);
}

std::span<std::byte> PieceCache::Piece::bytes() const {
  return {entry_->buffer.get(), entry_->bytes};
}

void PieceCache::release(Entry& entry) {
  MutexLock lock(mutex_);
  if (--entry.users == 0) changed_.notify_all();
}

// One that has the piece or is about to; otherwise one that nobody will ask for again, or that nobody has used for longest.
PieceCache::Entry* PieceCache::find_or_take(const Name& name) {
  Entry* oldest = nullptr;
  for (const auto& entry : entries_) {
    const bool of_use =
        entry->state == Entry::State::reading || entry->state == Entry::State::ready;
    if (of_use && entry->name == name) return entry.get();
    const auto use = [](const Entry& each) { return std::pair(each.askers > 0, each.last_used); };
    if (entry->users == 0 && (oldest == nullptr || use(*entry) < use(*oldest)))
      oldest = entry.get();
  }
  if (oldest != nullptr) {
    oldest->state = Entry::State::empty;
    oldest->name = name;
  }
  return oldest;
}

Result<PieceCache::Piece> PieceCache::get(const Name& name, Engine& engine,
                                          const std::byte* address, Bytes bytes, int askers) {
  MutexLock lock(mutex_);
  Entry* entry = find_or_take(name);
  for (; entry == nullptr; entry = find_or_take(name)) changed_.wait(mutex_);
  ++entry->users;
  entry->last_used = ++clock_;
  if (entry->state == Entry::State::empty) entry->askers = askers;
  entry->askers = std::max(entry->askers - 1, 0);
  if (entry->state == Entry::State::empty) {
    entry->state = Entry::State::reading;
    entry->bytes = bytes;
    mutex_.unlock();
    std::optional<Error> failure;
    for (Bytes done = 0; done < bytes && !failure;) {
      const Result<Bytes> part = engine.read_bypassing_heap(
          address + done, bytes - done,
          {entry->buffer.get() + done, Engine::bypass_buffer_bytes(bytes - done)});
      if (part.ok()) {
        done += part.value();
      } else {
        failure = part.error();
      }
    }
    mutex_.lock();
    entry->failure = std::move(failure);
    entry->state = entry->failure ? Entry::State::failed : Entry::State::ready;
    changed_.notify_all();
  }
  while (entry->state == Entry::State::reading) changed_.wait(mutex_);
  if (entry->state == Entry::State::ready) return Piece(*this, *entry);
  Error failure = *entry->failure;
  if (--entry->users == 0) changed_.notify_all();
  return failure;
}

void PieceCache::forget(uint64_t key) {
  MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    if (entry->name.key == key && entry->users == 0) {
      entry->name = {};
      entry->askers = 0;
      entry->state = Entry::State::empty;
    }
  }
}

}  // namespace bottomless
