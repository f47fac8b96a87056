#include "memory/heap.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace bottomless {
namespace {

constexpr Bytes kMostAddresses = 16_TiB;
constexpr int kPoisonByte = 0xFF;  // a NaN in every floating-point type

// A frame and the ground behind it are two mappings, and a block as large as the largest frame may be
// made of five frames.
constexpr size_t kMappingsOfLarge = 10;

// How many frames may exist before small blocks are too many: beside memory full of large blocks, and
// beside the mappings of everything else in the process.
size_t most_small_frames(const HeapOptions& options) {
  const size_t large = kMappingsOfLarge * (options.limit / options.frames.large + 1);
  const size_t others = options.most_mappings / 16;
  return (options.most_mappings - std::min(options.most_mappings, large + others)) / 2;
}

}  // namespace

FrameSizes frame_sizes_for(Bytes limit, size_t most_mappings) {
  const Bytes most_large = std::max<Bytes>(most_mappings / 30, 64);
  const Bytes usual = std::clamp(std::bit_floor(std::max<Bytes>(limit / 64, 1)), 64_KiB, 2_MiB);
  const Bytes large = std::max(usual, std::bit_ceil(limit / most_large));
  return {.large = large, .small = std::max(16_KiB, large >> (kMostFrameClasses - 1))};
}

Bytes block_bytes_for(Bytes limit, Bytes large_frame) {
  return std::clamp(std::bit_floor(std::max<Bytes>(limit / 64, 1)), large_frame,
                    std::max(large_frame, 64_MiB));
}

Result<std::unique_ptr<Heap>> Heap::create(const HeapOptions& options) {
  const Bytes slots = FramePool::slot_bytes(options.limit, options.frames);
  // As many addresses as the system lets us have: each storage needs its own, resident or not.
  for (Bytes bytes = kMostAddresses;; bytes /= 2) {
    Result<AddressSpace> space =
        AddressSpace::reserve(bytes, std::max(options.frames.large, 2_MiB));
    if (space.ok()) return std::unique_ptr<Heap>(new Heap(std::move(space).value(), options));
    if (bytes / 2 < slots + 4 * options.limit) return std::move(space).error();
  }
}

Heap::Heap(AddressSpace space, const HeapOptions& options)
    : space_(std::move(space)),
      pool_(space_, space_.base(), options.limit, options.frames),
      poison_(options.poison),
      max_small_frames_(most_small_frames(options)),
      ranges_at_(space_.base() + FramePool::slot_bytes(options.limit, options.frames)),
      ranges_((space_.bytes() - FramePool::slot_bytes(options.limit, options.frames)) / kGranule) {}

Result<std::byte*> Heap::reserve(Bytes bytes) {
  const FrameCounts counts = frames_for(bytes, pool_.sizes());
  // Large frames stay huge pages only at addresses that are multiples of theirs.
  const Bytes alignment = counts.of[0] > 0 ? std::max<Bytes>(pool_.sizes().large / kGranule, 1) : 1;
  const std::optional<uint64_t> at = ranges_.allocate(granules(counts), alignment);
  if (!at) {
    return Error{Code::no_memory, "reserve addresses for " + format_bytes(bytes) + ": all " +
                                      format_bytes(ranges_.end() * kGranule) +
                                      " are in use; raise the address-space limit (ulimit -v)"};
  }
  return ranges_at_ + *at * kGranule;
}

void Heap::release_counts(std::byte* at, const FrameCounts& counts) {
  ranges_.free(offset_of(at) / kGranule, granules(counts));
}

void Heap::release(std::byte* at, Bytes bytes) {
  release_counts(at, frames_for(bytes, pool_.sizes()));
}

std::byte* Heap::reuse(Bytes bytes) {
  const FrameCounts counts = frames_for(bytes, pool_.sizes());
  const auto found = retired_by_size_.find(counts);
  if (found == retired_by_size_.end()) return nullptr;
  const RetiredList::iterator newest =
      found->second.back();  // the one most likely still in the caches
  found->second.pop_back();
  if (found->second.empty()) retired_by_size_.erase(found);
  std::byte* at = newest->at;
  retired_.erase(newest);
  retired_bytes_ -= counts.bytes(pool_.sizes());
  return at;
}

void Heap::retire(std::byte* at, Bytes bytes) {
  const FrameCounts counts = frames_for(bytes, pool_.sizes());
  retired_.push_back({at, counts});
  retired_by_size_[counts].push_back(std::prev(retired_.end()));
  retired_bytes_ += counts.bytes(pool_.sizes());
  if (poison_ == Poison::on || pool_.committed() > pool_.budget()) {
    while (!retired_.empty()) strip_oldest();
  }
}

void Heap::strip_oldest() {
  const Retired oldest = retired_.front();
  auto& same_size = retired_by_size_.at(oldest.counts);
  same_size.erase(std::find(same_size.begin(), same_size.end(), retired_.begin()));
  if (same_size.empty()) retired_by_size_.erase(oldest.counts);
  retired_.pop_front();
  retired_bytes_ -= oldest.counts.bytes(pool_.sizes());
  park(pool_.unmap(oldest.at, oldest.counts));
  release_counts(oldest.at, oldest.counts);
}

Bytes Heap::available() const { return in_use() >= pool_.budget() ? 0 : pool_.budget() - in_use(); }

void Heap::set_budget(Bytes budget) {
  pool_.set_budget(budget);
  while (pool_.committed() > pool_.budget() && !retired_.empty()) strip_oldest();
}

Result<Frames> Heap::take(Bytes bytes) {
  const FrameCounts counts = frames_for(bytes, pool_.sizes());
  // Before a new frame is made: its first touch costs a thousand times what moving an idle one
  // does.
  while (pool_.parked() < counts.bytes(pool_.sizes()) && !retired_.empty()) strip_oldest();
  return pool_.take(counts);
}

void Heap::park(Frames&& frames) {
  if (poison_ == Poison::on) {
    for (const auto piece : frames.pieces(frames.counts.bytes(pool_.sizes()), pool_.sizes())) {
      std::memset(piece.data(), kPoisonByte, piece.size());
    }
  }
  pool_.park(std::move(frames));
}

void Heap::unmap(std::byte* at, Bytes bytes) {
  park(pool_.unmap(at, frames_for(bytes, pool_.sizes())));
}

}  // namespace bottomless
