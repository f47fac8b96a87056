// The physical memory of a heap: frames of two sizes that exist up to a budget and are moved,
// never copied. Large frames are huge pages where the kernel grants them; small ones serve the
// tails, so that rounding wastes little. A frame that serves nobody is parked in a slot of the
// pool, an address only the pool knows: data can be read into it there before it is moved under
// a block, all at once.
// Thread-safety: none; the owner locks.
// Lifetime: the AddressSpace must outlive the pool.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/address_space.h"

namespace bottomless {

// Frames come in powers of two, from `small` to `large`.
struct FrameSizes {
  Bytes large = 2_MiB;
  Bytes small = 16_KiB;

  size_t classes() const { return static_cast<size_t>(std::countr_zero(large / small)) + 1; }
  Bytes of(size_t size_class) const { return large >> size_class; }  // class 0 is the largest
};
inline constexpr size_t kMostFrameClasses = 16;

// How many frames of each class; class 0 first.
struct FrameCounts {
  std::array<uint32_t, kMostFrameClasses> of{};

  Bytes bytes(const FrameSizes& sizes) const;
  size_t total() const;
  bool operator==(const FrameCounts&) const = default;
};

// The frames that hold `bytes`, few and with little waste: as many of the largest as fit, then at
// most one of each smaller class, rounded up to a sixteenth of the whole. 5.1 MiB -> 2 x 2 MiB + 1
// MiB + 256 KiB.
FrameCounts frames_for(Bytes bytes, const FrameSizes& sizes);

// Frames that their holder has taken out of the pool and not yet mapped, the largest first, by the
// address of their slot.
struct Frames {
  std::vector<std::byte*> slots;
  FrameCounts counts;

  // The first `bytes` of the frames' memory, in order, as the pieces a transfer needs.
  std::vector<std::span<std::byte>> pieces(Bytes bytes, const FrameSizes& sizes) const;
};

class FramePool {
 public:
  // Slots are laid out in `space` from `slots_at` on: slot_bytes(limit, sizes) bytes.
  FramePool(AddressSpace& space, std::byte* slots_at, Bytes limit, FrameSizes sizes);
  static Bytes slot_bytes(Bytes limit, const FrameSizes& sizes);

  const FrameSizes& sizes() const { return sizes_; }
  Bytes budget() const { return budget_; }
  Bytes committed() const { return committed_; }  // frames that exist, parked or in use
  Bytes parked() const;
  Bytes in_use() const { return committed_ - parked(); }
  // Each frame may be a mapping of its own, and the kernel allows a process only so many
  // (vm.max_map_count).
  size_t frames() const { return frames_; }
  // What take() can still give; nothing while the budget is overdrawn.
  Bytes available() const;

  // Changes how many bytes of frames may exist, at most the limit given at construction; parked
  // frames above it go back to the kernel now, frames in use when they are parked again.
  void set_budget(Bytes budget);

  // Succeeds whenever available() covers it and the kernel agrees; nothing is taken otherwise.
  Result<Frames> take(FrameCounts counts);
  void park(Frames&& frames);

  // Moves frames under [at, ...): visible to other threads at once and with `access` from the first
  // moment on.
  void map(std::byte* at, Frames&& frames, Access access);
  // Takes the frames from under a mapped range; other threads see it inaccessible from the first
  // moment on.
  Frames unmap(std::byte* at, FrameCounts counts);

 private:
  struct Shelf {                     // the slots of one frame size
    std::vector<std::byte*> parked;  // a frame lies here
    std::vector<std::byte*> empty;   // a frame has left it
    size_t slots_used = 0;           // slots above were never used
  };

  Result<void> fill(size_t size_class, size_t count);
  std::byte* empty_slot(size_t size_class);
  void discard(size_t size_class);
  bool discard_one_except(size_t size_class);
  template <class Visit>
  void each_frame(std::byte* at, const FrameCounts& counts, Visit visit) const;

  AddressSpace& space_;
  FrameSizes sizes_;
  Bytes limit_;
  Bytes budget_;
  Bytes committed_ = 0;
  size_t frames_ = 0;
  std::vector<Shelf> shelves_;  // by size class
  std::byte* slots_at_;
};

}  // namespace bottomless
