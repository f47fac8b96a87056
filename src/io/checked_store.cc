#include "io/checked_store.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace bottomless {
namespace {

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

uint64_t checksum_of(const Pieces& pieces, Bytes bytes) {
  thread_local const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  for (const std::span<std::byte> piece : pieces) {
    const Bytes here = std::min<Bytes>(piece.size(), bytes);
    XXH3_64bits_update(state.get(), piece.data(), here);
    bytes -= here;
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

void CheckedStore::free(const Extent& extent) {
  {
    MutexLock lock(mutex_);
    written_.erase({extent.disk, extent.offset});
  }
  StoreOver::free(extent);
}

void CheckedStore::write(const Extent& extent, Pieces from, Urgency urgency, Done done) {
  Pieces pieces = from;
  StoreOver::write(
      extent, std::move(from), urgency,
      [this, extent, pieces = std::move(pieces), done = std::move(done)](Result<void> outcome) {
        if (outcome.ok()) {
          // The memory is still as it was written: whoever wants to change it waits.
          const Bytes bytes = total(pieces);
          const Written written{checksum_of(pieces, bytes), bytes};
          MutexLock lock(mutex_);
          written_[{extent.disk, extent.offset}] = written;
        }
        done(std::move(outcome));
      });
}

Result<void> CheckedStore::compare(const Extent& extent, const Pieces& pieces) {
  std::optional<Written> expected;
  {
    MutexLock lock(mutex_);
    const auto found = written_.find({extent.disk, extent.offset});
    if (found != written_.end()) expected = found->second;
  }
  if (!expected || total(pieces) < expected->bytes ||
      checksum_of(pieces, expected->bytes) == expected->checksum) {
    return {};
  }
  return Error{Code::io, "read " + format_bytes(expected->bytes) + " at offset " +
                             std::to_string(extent.offset) + " of scratch disk " +
                             std::to_string(extent.disk) +
                             ": it is not what was written there (checksums differ); the disk or "
                             "its path to memory is broken: name another with --disk"};
}

void CheckedStore::read(const Extent& extent, Pieces into, Urgency urgency, Done done) {
  Pieces pieces = into;
  StoreOver::read(
      extent, std::move(into), urgency,
      [this, extent, pieces = std::move(pieces), done = std::move(done)](Result<void> outcome) {
        done(outcome.ok() ? compare(extent, pieces) : std::move(outcome));
      });
}

}  // namespace bottomless
