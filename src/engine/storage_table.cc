#include "engine/storage_table.h"

#include <utility>

namespace bottomless {

Storage* StorageTable::find(const void* address) const {
  if (!heap_.contains(address)) return nullptr;
  // Frames' own addresses lie below those of storages: their index wraps to a huge one.
  const Bytes index = heap_.offset_of(address) / Heap::kGranule;
  return index < table_.size() ? table_[index] : nullptr;
}

Block& StorageTable::block_at(Storage& storage, const void* address) const {
  const auto from = static_cast<Bytes>(static_cast<const std::byte*>(address) - storage.at);
  return storage.blocks[std::min(from / block_bytes_, storage.blocks.size() - 1)];
}

size_t StorageTable::entries_for(const std::byte* at, Bytes bytes) const {
  const size_t end =
      (heap_.offset_of(at) + heap_.footprint(bytes) + Heap::kGranule - 1) / Heap::kGranule;
  return end <= table_.size() ? table_.size() : std::max(end, table_.size() * 3 / 2);
}

Bytes StorageTable::record_bytes_for(const std::byte* at, Bytes bytes, const Remote* remote) const {
  const size_t new_entries = entries_for(at, bytes) - table_.size();
  return sizeof(Storage) + (remote != nullptr ? sizeof(Remote) : 0) +
         // NOLINTNEXTLINE(bugprone-sizeof-expression)
         blocks_for(bytes) * sizeof(Block) + new_entries * sizeof(Storage*);
}

void StorageTable::enter(const Storage& storage, Storage* value) {
  const size_t first = heap_.offset_of(storage.at) / Heap::kGranule;
  const size_t count = (heap_.footprint(storage.bytes) + Heap::kGranule - 1) / Heap::kGranule;
  const size_t entries = entries_for(storage.at, storage.bytes);
  table_.reserve(entries);  // exactly that: resize() alone would double it
  table_.resize(entries, nullptr);
  std::fill_n(table_.begin() + static_cast<ptrdiff_t>(first), count, value);
}

Storage& StorageTable::add(std::byte* at, Bytes bytes, Kind kind, std::unique_ptr<Remote> remote) {
  auto storage = std::make_unique<Storage>();
  storage->at = at;
  storage->bytes = bytes;
  storage->remote = std::move(remote);
  storage->blocks.resize(blocks_for(bytes));
  for (size_t i = 0; i < storage->blocks.size(); ++i) {
    Block& block = storage->blocks[i];
    block.storage = storage.get();
    block.at = at + i * block_bytes_;
    block.bytes = std::min(block_bytes_, bytes - i * block_bytes_);
    block.remote = storage->remote != nullptr;
  }
  storage->traced.kind = kind;
  storage->traced.blocks = static_cast<uint32_t>(storage->blocks.size());
  storage->traced.block_bytes = heap_.footprint(storage->blocks.front().bytes);
  storage->traced.last_bytes = heap_.footprint(storage->blocks.back().bytes);
  enter(*storage, storage.get());
  ++storages_;
  blocks_ += storage->blocks.size();
  return *storage.release();  // owned by the table; remove() deletes it
}

void StorageTable::remove(Storage& storage) {
  enter(storage, nullptr);
  --storages_;
  blocks_ -= storage.blocks.size();
  delete &storage;  // NOLINT(cppcoreguidelines-owning-memory): released in add()
}

}  // namespace bottomless
