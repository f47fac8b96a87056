#include "ranks/gather.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace bottomless {

// Of one block: done when its last pull is.
struct Gather::Fetch {
  Mutex mutex;
  size_t missing BOTTOMLESS_GUARDED_BY(mutex) = 0;
  std::optional<Error> failure BOTTOMLESS_GUARDED_BY(mutex);
  Done done;
};

void Gather::fetch(Bytes offset, Bytes bytes, Pieces into, Urgency urgency, Done done) {
  auto fetch = std::make_shared<Fetch>();
  fetch->done = std::move(done);
  struct Part {
    int rank;
    Bytes at;
    std::span<std::byte> into;
  };
  std::vector<Part> parts;
  Bytes shared = 0;
  Bytes piece_at = offset;
  for (const std::span<std::byte> piece : into) {
    const Bytes piece_end = std::min(piece_at + piece.size(), offset + bytes);
    for (size_t rank = 0; rank < sharded_.shares.size(); ++rank) {
      const Bytes begin = std::max(piece_at, sharded_.shares[rank].begin);
      const Bytes end = std::min(piece_end, sharded_.shares[rank].end);
      if (begin >= end) continue;
      parts.push_back(
          {static_cast<int>(rank), begin, piece.subspan(begin - piece_at, end - begin)});
      shared += end - begin;
    }
    piece_at = piece_end;
  }
  BOTTOMLESS_CHECK(shared == bytes, "every byte of what is sharded is somebody's");
  const uint64_t version = this->version();  // of all parts the same
  // Not all ranks begin with the same one.
  const auto first = std::find_if(parts.begin(), parts.end(),
                                  [&](const Part& part) { return part.rank > exchange_.rank(); });
  std::rotate(parts.begin(), first, parts.end());
  {
    MutexLock lock(fetch->mutex);
    fetch->missing = parts.size();
  }
  MutexLock lock(mutex_);  // until all are known: a done one looks for itself below
  std::vector<uint64_t>& ids = under_way_[offset];
  for (const Part& part : parts) {
    ids.push_back(exchange_.pull({.from = part.rank,
                                  .key = sharded_.key,
                                  .version = version,
                                  .offset = part.at,
                                  .into = part.into,
                                  .format = sharded_.format,
                                  .element = sharded_.element,
                                  .urgency = urgency,
                                  .what = "gather '" + sharded_.name + "'",
                                  .done = [this, fetch, offset](Result<void> outcome) {
                                    {
                                      MutexLock lock(fetch->mutex);
                                      if (!outcome.ok() && !fetch->failure)
                                        fetch->failure = std::move(outcome).error();
                                      if (--fetch->missing > 0) return;
                                    }
                                    {
                                      MutexLock lock(mutex_);
                                      under_way_.erase(offset);
                                    }
                                    std::optional<Error> failure;
                                    {
                                      MutexLock lock(fetch->mutex);
                                      failure = std::move(fetch->failure);
                                    }
                                    fetch->done(failure ? Result<void>(std::move(*failure))
                                                        : Result<void>());
                                  }}));
  }
}

void Gather::hurry(Bytes offset) {
  std::vector<uint64_t> ids;
  {
    MutexLock lock(mutex_);
    if (const auto found = under_way_.find(offset); found != under_way_.end()) ids = found->second;
  }
  for (const uint64_t id : ids) exchange_.hurry(id);
}

}  // namespace bottomless
