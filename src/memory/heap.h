// A heap whose addresses never change and whose memory never exceeds its budget. A range of
// addresses is reserved for a storage's whole life; frames from a bounded pool are moved under
// parts of it and away again, so any free frame serves any block and nothing fragments. Ranges
// of freed storages are kept with their frames for the next storage of the same size: an
// allocation in a training loop costs no system call.
// Thread-safety: contains() and addresses() from any thread; everything else under the owner's lock.
// Lifetime: every address the heap gave is invalid once it is gone.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>

#include "base/best_fit.h"
#include "memory/address_space.h"
#include "memory/frame_pool.h"

namespace bottomless {

enum class Poison {
  off,
  on
};  // on: memory that leaves or dies is overwritten with 0xFF and never handed out as it was

// How many mappings the kernel allows a process where nobody changed it (vm.max_map_count).
inline constexpr size_t kUsualMappings = 65530;

struct HeapOptions {
  Bytes limit = 0;
  FrameSizes frames;
  Poison poison = Poison::off;
  size_t most_mappings = kUsualMappings;
};

// Frame sizes that suit a limit: such that at least 64 of the largest exist, and that memory full
// of them is far fewer mappings than the kernel allows. 64 MiB -> up to 1 MiB; 4 GiB -> up to 2 MiB;
// 64 GiB -> up to 32 MiB.
FrameSizes frame_sizes_for(Bytes limit, size_t most_mappings = kUsualMappings);
// What storages are cut into, to be moved by itself: small enough that a few blocks of each operand
// of one operator fit, large enough that a disk is at full speed.
Bytes block_bytes_for(Bytes limit, Bytes large_frame);

class Heap {
 public:
  static Result<std::unique_ptr<Heap>> create(const HeapOptions& options);
  ~Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  bool contains(const void* address) const noexcept { return space_.contains(address); }
  std::span<const std::byte> addresses() const noexcept { return {space_.base(), space_.bytes()}; }
  // Ranges start at multiples of this offset and share no such granule: the unit of lookup tables.
  static constexpr Bytes kGranule = 64_KiB;
  const FrameSizes& frame_sizes() const { return pool_.sizes(); }
  // True when so many frames exist that more blocks as small as `bytes` would come near the kernel's
  // count of mappings. Of blocks as large as the largest frame there is always room for all.
  bool too_crowded_for(Bytes bytes) const {
    return pool_.frames() > max_small_frames_ && bytes < std::max(pool_.sizes().large, 4_MiB);
  }
  Bytes footprint(Bytes bytes) const {
    return frames_for(bytes, pool_.sizes()).bytes(pool_.sizes());
  }

  // A range for a storage of `bytes`, inaccessible until blocks are mapped.
  Result<std::byte*> reserve(Bytes bytes);
  void release(std::byte* at, Bytes bytes);  // nothing may be mapped there any more

  // A range of the same frames with all of them mapped, writable and with arbitrary content, if one
  // was retired.
  std::byte* reuse(Bytes bytes);
  // Keeps a wholly mapped range for reuse(). Its frames still count as available: they are taken
  // when needed.
  void retire(std::byte* at, Bytes bytes);

  // Frames: see FramePool. take() draws on retired ranges where the pool is short.
  Bytes available() const;
  Bytes committed() const { return pool_.committed(); }
  Bytes in_use() const {
    return pool_.in_use() - retired_bytes_;
  }  // frames that hold living blocks
  Bytes budget() const { return pool_.budget(); }
  void set_budget(Bytes budget);
  Result<Frames> take(Bytes bytes);
  void park(Frames&& frames);
  void map(std::byte* at, Frames&& frames, Access access) {
    pool_.map(at, std::move(frames), access);
  }
  void unmap(std::byte* at, Bytes bytes);
  // Takes a block's frames from under it, content and all; map() puts them back.
  Frames lift(std::byte* at, Bytes bytes) {
    return pool_.unmap(at, frames_for(bytes, pool_.sizes()));
  }
  void protect(std::byte* at, Bytes bytes, Access access) {
    space_.protect(at, footprint(bytes), access);
  }

  // In a forked child: puts memory of its own, filled by `fill`, under a block that is away.
  template <class Fill>
  bool put_copy(std::byte* at, Bytes bytes, Fill fill) noexcept {
    const Bytes whole = footprint(bytes);
    std::byte* copy = AddressSpace::create_outside(whole);
    return copy != nullptr && fill(copy) && space_.move_in(copy, at, whole);
  }

  // The offset of an address in the range that storages live in, for lookup tables; under 2^48.
  Bytes offset_of(const void* address) const {
    return static_cast<Bytes>(static_cast<const std::byte*>(address) - ranges_at_);
  }

 private:
  struct Retired {
    std::byte* at;
    FrameCounts counts;
  };
  struct CountsHash {
    size_t operator()(const FrameCounts& counts) const {
      size_t hash = 0;
      for (const uint32_t count : counts.of) hash = hash * 0x9E3779B97F4A7C15ull + count;
      return hash;
    }
  };
  using RetiredList = std::list<Retired>;  // oldest first
  Heap(AddressSpace space, const HeapOptions& options);
  void strip_oldest();
  void release_counts(std::byte* at, const FrameCounts& counts);
  Bytes granules(const FrameCounts& counts) const {
    return (counts.bytes(pool_.sizes()) + kGranule - 1) / kGranule;
  }

  AddressSpace space_;
  FramePool pool_;
  Poison poison_;
  size_t max_small_frames_;  // frames
  std::byte* ranges_at_;
  BestFit ranges_;  // in granules
  RetiredList retired_;
  std::unordered_map<FrameCounts, std::vector<RetiredList::iterator>, CountsHash> retired_by_size_;
  Bytes retired_bytes_ = 0;
};

}  // namespace bottomless
