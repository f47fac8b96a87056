// A store that notices when what it reads is not what was written: checksums of every extent, taken from memory once it
// has been written and compared once it has been read. Corrupt data is an error that names the place, never a result.
// Any part of an extent may be read: there is one sum for each kUnit of it, and a read that begins or ends within a unit
// brings in the rest of that as well, into memory of its own, to compare it.
// Thread-safety: see Store. Checksums are taken on the threads of the store below.
// Lifetime: see StoreOver.
#pragma once
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "io/store_over.h"

namespace bottomless {

class CheckedStore final : public StoreOver {
 public:
  // Eight bytes are kept for each, so 100 GiB in the store take 6.3 MiB.
  static constexpr Bytes kUnit = 128_KiB;

  explicit CheckedStore(std::unique_ptr<Store> below) : StoreOver(std::move(below)) {}
  ~CheckedStore() override { end_below(); }

  void free(const Extent& extent) override;
  void read(const Extent& extent, Pieces into, Priority priority, Done done) override;
  void write(const Extent& extent, Pieces from, Priority priority, Done done) override;

 private:
  struct Written {
    Bytes bytes = 0;
    std::vector<uint64_t> checksums;  // one of each unit, the last may be shorter
  };
  struct Around {  // what is known of the extent that a part of is read
    uint64_t begin = 0;
    std::shared_ptr<const Written> written;  // null: nothing
  };
  using Place = std::pair<uint32_t, uint64_t>;  // disk and offset

  static Written sums_of(const Pieces& pieces);
  static Result<void> compare(const Extent& extent, const Around& around, Bytes from, Bytes to,
                              const Pieces& pieces);
  Around around(const Extent& extent);

  Mutex mutex_;
  std::map<Place, std::shared_ptr<const Written>> written_ BOTTOMLESS_GUARDED_BY(mutex_);
};

}  // namespace bottomless
