#include "ranks/gather.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace bottomless {
namespace {

struct Part {
  int rank;
  Bytes at;
  std::span<std::byte> into;
};

// Which rank fills which piece of memory.
std::vector<Part> parts_of(Bytes offset, Bytes bytes, const Pieces& into,
                           const std::vector<Share>& shares) {
  std::vector<Part> parts;
  Bytes shared = 0;
  Bytes piece_at = offset;
  for (const std::span<std::byte> piece : into) {
    const Bytes piece_end = std::min(piece_at + piece.size(), offset + bytes);
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      const Bytes begin = std::max(piece_at, shares[rank].begin);
      const Bytes end = std::min(piece_end, shares[rank].end);
      if (begin >= end) continue;
      parts.push_back(
          {static_cast<int>(rank), begin, piece.subspan(begin - piece_at, end - begin)});
      shared += end - begin;
    }
    piece_at = piece_end;
  }
  BOTTOMLESS_CHECK(shared == bytes, "every byte of what is sharded is somebody's");
  return parts;
}

}  // namespace

// Of one block: done when its last pull is.
struct Gather::Fetch {
  Bytes offset = 0;
  Bytes bytes = 0;
  Pieces into;
  uint64_t version = 0;  // of all parts the same
  Done done;
  Mutex mutex;
  size_t missing BOTTOMLESS_GUARDED_BY(mutex) = 0;
  std::optional<Error> failure BOTTOMLESS_GUARDED_BY(mutex);
};

void Gather::fetch(Bytes offset, Bytes bytes, Pieces into, Priority priority, Done done) {
  auto fetch = std::make_shared<Fetch>();
  fetch->offset = offset;
  fetch->bytes = bytes;
  fetch->into = std::move(into);
  fetch->version = version();
  fetch->done = std::move(done);
  const bool kept =
      sharded_.within_node != nullptr && sharded_.within_node->complete(fetch->version);
  pull(fetch, kept ? From::node : From::owners, priority);
}

void Gather::pull(const std::shared_ptr<Fetch>& fetch, From from, Priority priority) {
  const bool near = from == From::node;
  std::vector<Part> parts = parts_of(fetch->offset, fetch->bytes, fetch->into,
                                     near ? sharded_.within_node->shares() : sharded_.shares);
  // Not all ranks begin with the same one.
  const auto first = std::find_if(parts.begin(), parts.end(),
                                  [&](const Part& part) { return part.rank > exchange_.rank(); });
  std::rotate(parts.begin(), first, parts.end());
  {
    MutexLock lock(fetch->mutex);
    fetch->missing = parts.size();
    fetch->failure.reset();
  }
  MutexLock lock(mutex_);  // until all are known: a done one looks for itself in ended()
  std::vector<uint64_t>& ids = under_way_[fetch->offset];
  ids.clear();
  for (const Part& part : parts) {
    // What the node keeps has been quantised once, and is not again: every gather gives the same bits.
    ids.push_back(exchange_.pull({.from = part.rank,
                                  .key = near ? sharded_.within_node->key() : sharded_.key,
                                  .version = fetch->version,
                                  .offset = part.at,
                                  .into = part.into,
                                  .format = near ? Format::plain : sharded_.format,
                                  .element = sharded_.element,
                                  .priority = priority,
                                  .what = "gather '" + sharded_.name + "'",
                                  .done = [this, fetch, from](Result<void> outcome) {
                                    ended(fetch, from, std::move(outcome));
                                  }}));
  }
}

void Gather::ended(const std::shared_ptr<Fetch>& fetch, From from, Result<void> outcome) {
  std::optional<Error> failure;
  {
    MutexLock lock(fetch->mutex);
    if (!outcome.ok() && !fetch->failure) fetch->failure = std::move(outcome).error();
    if (--fetch->missing > 0) return;
    failure = std::move(fetch->failure);
  }
  if (failure && from == From::node) {
    // Somebody in the node has not kept it, or not in time. It has waited once already.
    pull(fetch, From::owners, Priority::demand);
    return;
  }
  {
    MutexLock lock(mutex_);
    under_way_.erase(fetch->offset);
  }
  NodeShares::Kept* const kept = from == From::owners ? sharded_.within_node : nullptr;
  const bool fine = !failure;
  // It lets go of the storage, and with it, perhaps, of this source.
  fetch->done(failure ? Result<void>(std::move(*failure)) : Result<void>());
  if (fine && kept != nullptr) kept->gathered(fetch->version, fetch->offset, fetch->bytes);
}

void Gather::raise_priority(Bytes offset) {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(mutex_);
    if (const auto found = under_way_.find(offset); found != under_way_.end()) ids = found->second;
  }
  for (const uint64_t id : ids) exchange_.raise_priority(id);
}

}  // namespace bottomless
