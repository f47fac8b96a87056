// Pieces of offered memory, read once and given to all who ask for them at about the same time.
// Thread-safety: every call from any thread.
// Lifetime: a Piece keeps its buffer; all are gone before the cache.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"

namespace bottomless {

class PieceCache {
 public:
  struct Name {
    uint64_t key = 0;
    uint64_t version = 0;
    Bytes offset = 0;  // in the offered memory, a multiple of the piece's size
    bool operator==(const Name&) const = default;
  };
  struct Entry;
  class Piece {
   public:
    Piece(PieceCache& cache, Entry& entry) : cache_(&cache), entry_(&entry) {}
    Piece(Piece&& other) noexcept
        : cache_(other.cache_), entry_(std::exchange(other.entry_, nullptr)) {}
    Piece& operator=(Piece&&) = delete;
    ~Piece();
    std::span<std::byte> bytes() const;

   private:
    PieceCache* cache_;
    Entry* entry_;
  };

  explicit PieceCache(Bytes piece_bytes);
  ~PieceCache();

  // The memory for so many; before the first get().
  Result<void> reserve(size_t pieces);
  Bytes piece_bytes() const { return piece_bytes_; }
  // The piece, read from `engine` at `address` if nobody has it; waits while all buffers are in use. So many in all will ask
  // for it: once they have, it is of no more use.
  Result<Piece> get(const Name& name, Engine& engine, const std::byte* address, Bytes bytes,
                    int askers = 1);
  // What it holds of `key` is of no use any more.
  void forget(uint64_t key);

 private:
  Entry* find_or_take(const Name& name) BOTTOMLESS_REQUIRES(mutex_);
  void release(Entry& entry);

  const Bytes piece_bytes_;
  Mutex mutex_;
  CondVar changed_;
  uint64_t clock_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Entry>> entries_ BOTTOMLESS_GUARDED_BY(mutex_);
};

}  // namespace bottomless
