// A store that notices when what it reads is not what was written: a checksum of every extent, taken
// from memory once it has been written and compared once it has been read. Corrupt data is an error
// that names the place, never a result.
// Thread-safety: see Store. Checksums are taken on the threads of the store below.
// Lifetime: see StoreOver.
#pragma once
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "io/store_over.h"

namespace bottomless {

class CheckedStore final : public StoreOver {
 public:
  explicit CheckedStore(std::unique_ptr<Store> below) : StoreOver(std::move(below)) {}
  ~CheckedStore() override { end_below(); }

  void free(const Extent& extent) override;
  void read(const Extent& extent, Pieces into, Urgency urgency, Done done) override;
  void write(const Extent& extent, Pieces from, Urgency urgency, Done done) override;

 private:
  struct Written {
    uint64_t checksum;
    Bytes bytes;
  };
  struct Key {
    uint32_t disk;
    uint64_t offset;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const { return key.offset / kAlignment * 31 + key.disk; }
  };
  Result<void> compare(const Extent& extent, const Pieces& pieces);

  Mutex mutex_;
  std::unordered_map<Key, Written, KeyHash> written_ BOTTOMLESS_GUARDED_BY(mutex_);
};

}  // namespace bottomless
