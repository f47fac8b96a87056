// The physical memory of a heap: frames of two sizes that exist up to a budget and are moved, never
// copied. Large frames are huge pages where the kernel grants them; small ones serve the tails, so
// that rounding wastes little. A frame that serves nobody is parked in a slot of the pool, an
// address only the pool knows: data can be read into it there before it is moved under a block, all
// at once. Thread-safety: none; the owner locks. Lifetime: the AddressSpace must outlive the pool.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "memory/address_space.h"

namespace bottomless {

struct FrameSizes {
  Bytes large = 2_MiB;
  Bytes small = 64_KiB;  // divides `large`
};

struct FrameCounts {
  size_t large = 0;
  size_t small = 0;

  Bytes bytes(const FrameSizes& sizes) const { return large * sizes.large + small * sizes.small; }
  bool operator==(const FrameCounts&) const = default;
};

// The frames that hold `bytes`: large ones, then small ones for the tail, unless a last large one
// wastes next to nothing.
FrameCounts frames_for(Bytes bytes, const FrameSizes& sizes);

// Frames that their holder has taken out of the pool and not yet mapped: large ones first, in slot
// addresses.
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
  Bytes parked() const {
    return large_.parked.size() * sizes_.large + small_.parked.size() * sizes_.small;
  }
  Bytes in_use() const { return committed_ - parked(); }
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
    std::vector<std::byte*> empty;   // only ground
  };

  Result<void> fill(Shelf& shelf, Bytes frame_bytes, size_t count);
  bool discard_one();
  Shelf& shelf(Bytes frame_bytes) { return frame_bytes == sizes_.large ? large_ : small_; }
  template <class Visit>
  void each_frame(std::byte* at, const FrameCounts& counts, Visit visit) const;

  AddressSpace& space_;
  FrameSizes sizes_;
  Bytes limit_;
  Bytes budget_;
  Bytes committed_ = 0;
  Shelf large_;
  Shelf small_;
};

}  // namespace bottomless
