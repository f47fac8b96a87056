// All storages, found by any address inside them, and how much memory their records take.
// Thread-safety: none; the engine locks.
// Lifetime: owns the storages; all are removed before it goes. The heap must outlive it.
#pragma once
#include <bottomless/bytes.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kind.h"
#include "engine/block.h"
#include "engine/need.h"
#include "memory/heap.h"

namespace bottomless {

// Whether the block lies wholly in the range.
inline bool covers(const Need& need, const Block& block) {
  const auto* from = static_cast<const std::byte*>(need.address);
  return from <= block.at && from + need.bytes >= block.at + block.bytes;
}

class StorageTable {
 public:
  StorageTable(const Heap& heap, Bytes block_bytes) : heap_(heap), block_bytes_(block_bytes) {}

  Bytes block_bytes() const { return block_bytes_; }
  uint64_t storages() const { return storages_; }

  Storage* find(const void* address) const;  // null: no storage is there
  // The block around an address of the storage; what lies past its end belongs to the last one.
  Block& block_at(Storage& storage, const void* address) const;
  // Calls `visit` with each block of the range, until it returns false.
  template <class Visit>
  void each_block(const Need& need, Visit visit) const;

  // A storage cut into blocks of which none is resident.
  Storage& add(std::byte* at, Bytes bytes, Kind kind, std::unique_ptr<Remote> remote);
  void remove(Storage& storage);  // deletes it
  // Calls `end` with every storage, which removes it.
  template <class End>
  void drain(End end);

  Bytes record_bytes() const {
    return blocks_ * sizeof(Block) + storages_ * sizeof(Storage) +
           // NOLINTNEXTLINE(bugprone-sizeof-expression)
           table_.capacity() * sizeof(Storage*);
  }
  // What add() would add to that.
  Bytes record_bytes_for(const std::byte* at, Bytes bytes, const Remote* remote) const;

 private:
  size_t blocks_for(Bytes bytes) const { return (bytes + block_bytes_ - 1) / block_bytes_; }
  size_t entries_for(const std::byte* at, Bytes bytes) const;
  void enter(const Storage& storage, Storage* value);

  const Heap& heap_;
  const Bytes block_bytes_;
  std::vector<Storage*> table_;  // by offset in the heap, one entry a granule
  uint64_t storages_ = 0;
  uint64_t blocks_ = 0;
};

template <class Visit>
void StorageTable::each_block(const Need& need, Visit visit) const {
  Storage* storage = need.bytes == 0 ? nullptr : find(need.address);
  if (storage == nullptr) return;
  const Bytes from = static_cast<Bytes>(static_cast<const std::byte*>(need.address) - storage->at);
  const size_t last = std::min((from + need.bytes - 1) / block_bytes_, storage->blocks.size() - 1);
  for (size_t i = from / block_bytes_; i <= last; ++i) {
    if (!visit(storage->blocks[i])) return;
  }
}

template <class End>
void StorageTable::drain(End end) {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i] != nullptr) end(*table_[i]);
  }
}

}  // namespace bottomless
