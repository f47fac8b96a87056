#include "io/checked_store.h"

#define XXH_STATIC_LINKING_ONLY  // a state that needs no memory of its own
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <utility>

namespace bottomless {
namespace {

// Sums of bytes that follow each other in pieces of memory.
class Sums {
 public:
  explicit Sums(const Pieces& pieces) : pieces_(pieces) {}

  // Of the next `bytes`, which must be there.
  uint64_t next(Bytes bytes) {
    while (at_ == pieces_[piece_].size()) go_on();
    if (const std::span<std::byte> here = pieces_[piece_].subspan(at_); here.size() >= bytes) {
      at_ += bytes;
      return XXH3_64bits(here.data(), bytes);
    }
    XXH3_64bits_reset(&state_);
    while (bytes > 0) {
      const std::span<std::byte> rest = pieces_[piece_].subspan(at_);
      const std::span<std::byte> part = rest.first(std::min<Bytes>(rest.size(), bytes));
      XXH3_64bits_update(&state_, part.data(), part.size());
      bytes -= part.size();
      at_ += part.size();
      if (bytes > 0) go_on();
    }
    return XXH3_64bits_digest(&state_);
  }

 private:
  void go_on() {
    ++piece_;
    at_ = 0;
  }

  const Pieces& pieces_;
  size_t piece_ = 0;
  Bytes at_ = 0;
  XXH3_state_t state_;
};

struct FreeAligned {
  void operator()(std::byte* at) const { std::free(at); }  // NOLINT: of aligned_alloc
};

}  // namespace

CheckedStore::Written CheckedStore::sums_of(const Pieces& pieces) {
  Written written{.bytes = total(pieces), .checksums = {}};
  written.checksums.reserve((written.bytes + kUnit - 1) / kUnit);
  Sums sums(pieces);
  for (Bytes at = 0; at < written.bytes; at += kUnit)
    written.checksums.push_back(sums.next(std::min(kUnit, written.bytes - at)));
  return written;
}

void CheckedStore::free(const Extent& extent) {
  {
    MutexLock lock(mutex_);
    written_.erase({extent.disk, extent.offset});
  }
  StoreOver::free(extent);
}

void CheckedStore::write(const Extent& extent, Pieces from, Priority priority, Done done) {
  Pieces pieces = from;
  StoreOver::write(
      extent, std::move(from), priority,
      [this, extent, pieces = std::move(pieces), done = std::move(done)](Result<void> outcome) {
        if (outcome.ok()) {
          // The memory is still as it was written: whoever wants to change it waits.
          auto written = std::make_shared<const Written>(sums_of(pieces));
          MutexLock lock(mutex_);
          written_[{extent.disk, extent.offset}] = std::move(written);
        }
        done(std::move(outcome));
      });
}

CheckedStore::Around CheckedStore::around(const Extent& extent) {
  MutexLock lock(mutex_);
  auto found = written_.upper_bound({extent.disk, extent.offset});
  if (found == written_.begin()) return {};
  --found;
  const auto [disk, begin] = found->first;
  if (disk != extent.disk || extent.offset - begin >= found->second->bytes) return {};
  return {begin, found->second};
}

// `pieces` hold what is from `from`, where a unit begins, to `to`, where one ends, of the extent.
Result<void> CheckedStore::compare(const Extent& extent, const Around& around, Bytes from, Bytes to,
                                   const Pieces& pieces) {
  Sums sums(pieces);
  for (Bytes at = from; at < to; at += kUnit) {
    const Bytes bytes = std::min(kUnit, to - at);
    if (sums.next(bytes) == around.written->checksums[at / kUnit]) continue;
    return Error{Code::io,
                 "read " + format_bytes(bytes) + " at offset " + std::to_string(around.begin + at) +
                     " of scratch disk " + std::to_string(extent.disk) +
                     ": it is not what was written there (checksums differ); the disk or "
                     "its path to memory is broken: name another with --disk",
                 EIO};
  }
  return {};
}

void CheckedStore::read(const Extent& extent, Pieces into, Priority priority, Done done) {
  Around around = this->around(extent);
  if (!around.written) {
    StoreOver::read(extent, std::move(into), priority, std::move(done));
    return;
  }
  // Example: units of 128 KiB, 300 KiB written, 140 KiB to 280 KiB wanted: 128 KiB to 300 KiB are read, of which 12 KiB
  // before and 20 KiB after the wanted go elsewhere, and the second and the third sum are compared.
  const Bytes written = around.written->bytes;
  const Bytes begin = extent.offset - around.begin;
  const Bytes end = begin + total(into);
  const Bytes from = begin / kUnit * kUnit;
  const Bytes to = std::min((end + kUnit - 1) / kUnit * kUnit, written);
  const Bytes before = begin - from;
  const Bytes after = to > end ? to - end : 0;
  std::shared_ptr<std::byte> rest;
  if (before + after > 0) {
    rest.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, before + after)),
               FreeAligned());
    if (!rest) {
      StoreOver::read(extent, std::move(into), priority,
                      [bytes = before + after, done = std::move(done)](Result<void> outcome) {
                        done(outcome.ok()
                                 ? Error{Code::no_memory,
                                         "compare checksums: no memory for " + format_bytes(bytes)}
                                 : std::move(outcome));
                      });
      return;
    }
  }
  Pieces pieces;
  if (before > 0) pieces.emplace_back(rest.get(), before);
  pieces.insert(pieces.end(), into.begin(), into.end());
  if (after > 0) pieces.emplace_back(rest.get() + before, after);
  const Extent wider{extent.disk, around.begin + from, std::max(end, to) - from};
  Pieces filled = pieces;
  StoreOver::read(
      wider, std::move(filled), priority,
      [wider, around = std::move(around), from, to, rest = std::move(rest),
       pieces = std::move(pieces), done = std::move(done)](Result<void> outcome) {
        done(outcome.ok() ? compare(wider, around, from, to, pieces) : std::move(outcome));
      });
}

}  // namespace bottomless
