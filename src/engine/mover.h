// Moves blocks between the heap and what lies below it, the store or a source, and maps them: the only part that changes a
// block's state, its mapping and its content below.
// Thread-safety: under the engine's lock, but for what ends a transfer, which takes it.
// Lifetime: every transfer has ended before it goes; what it is given must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/kind.h"
#include "base/mutex.h"
#include "engine/block.h"
#include "engine/budget.h"
#include "engine/changes.h"
#include "engine/places.h"
#include "engine/step_recorder.h"
#include "io/priority.h"
#include "io/store.h"
#include "memory/heap.h"

namespace bottomless {

struct MoverStats {
  Bytes read_bytes = 0;
  Bytes written_bytes = 0;
  Bytes gathered_bytes = 0;  // that came from sources
  uint64_t evictions = 0;
  uint64_t demand_fetches = 0;
  uint64_t prefetches = 0;
  KindBytes resident;
};

class Mover {
 public:
  // Called with the lock held once a transfer has changed the block's state.
  struct Owner {
    virtual ~Owner() = default;
    virtual void fetch_ended(Block& block) = 0;
    virtual void write_ended(Block& block) = 0;
  };

  Mover(Mutex& mutex, Heap& heap, Store& store, Bytes block_bytes, size_t spare_places,
        Budget& budget, Changes& changes, StepRecorder& recorder, Owner& owner);

  const MoverStats& stats() const { return stats_; }
  Store& store() { return store_; }
  Places& places() { return places_; }
  Bytes block_bytes() const { return block_bytes_; }
  Bytes footprint(const Block& block) const { return heap_.footprint(block.bytes); }

  // Begins to bring an absent block in. Without content, or if that is not wanted, it is there at once.
  Result<void> start_fetch(Block& block, Access access, Priority priority);
  void raise_priority(Block& block);  // of its prefetch: somebody waits for it now
  // What a fetch under way brings is of no use any more.
  static void discard(Block& block) { block.become(State::discarding); }

  // A clean block leaves at once, a dirty one when it has been written. Fails when there is no place for it.
  Result<void> evict(Block& block, Places::Leave leave, Priority priority);
  void drop(Block& block);                     // a resident one leaves, whatever it holds
  void forget_place(Block& block);             // and what lies there
  void add_resident(Block& block, Kind kind);  // a new one, whose frames are mapped already

  // To whoever pins a resident block.
  void grant(Block& block, Access access);
  // An access outside any operation is to fault, for reading or for writing.
  void hide(Storage& storage);
  void make_read_only(Storage& storage);

  // The range of a storage is the heap's again, with its frames where all of them are there.
  void release(Storage& storage);
  void set_kind(Storage& storage, Kind kind);

  // Reads what lies below, without bringing the block in. `into` has room for whole pages.
  Result<void> read_extent(const Block& block, Bytes from, Bytes bytes, std::span<std::byte> into);
  // In a forked child.
  bool serve_in_child(Block& block, Access access) noexcept;

  unsigned transfers() const { return disk_transfers_ + remote_transfers_; }
  unsigned writes() const { return writes_; }  // of these, to the store
  unsigned hidden_writes() const { return hidden_writes_; }
  Bytes leaving_bytes() const { return leaving_bytes_; }
  // A block that is being written is wanted again, or is not any more.
  void wanted_again(const Block& block) { leaving_bytes_ -= footprint(block); }
  void wanted_no_more(const Block& block) { leaving_bytes_ += footprint(block); }

  uint64_t failed_writes() const { return failed_writes_; }
  const Error& last_failed_write() const { return last_failed_write_; }

 private:
  void begin_disk_transfer();
  void end_disk_transfer();
  void start_write(Block& block, Priority priority);
  void written(Block& block, Result<void> outcome);
  void start_remote_fetch(Block& block, Frames&& frames, Access access, Priority priority);
  void fetched(Block& block, Frames&& frames, Access access, Result<void> outcome);
  void make_resident(Block& block, Frames&& frames, Access access);
  static void note_write(Storage& storage);
  void protect(Block& block, Access access);

  Mutex& mutex_;
  Heap& heap_;
  Store& store_;
  const Bytes block_bytes_;
  Places places_;
  Budget& budget_;
  Changes& changes_;
  StepRecorder& recorder_;
  Owner& owner_;
  MoverStats stats_;
  unsigned disk_transfers_ = 0;
  unsigned remote_transfers_ = 0;
  unsigned writes_ = 0;
  unsigned hidden_writes_ = 0;  // of blocks that are not mapped meanwhile
  Bytes leaving_bytes_ = 0;     // frames of blocks being written that nobody wants back
  uint64_t failed_writes_ = 0;
  Error last_failed_write_{};
};

}  // namespace bottomless
