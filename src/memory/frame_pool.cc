#include "memory/frame_pool.h"

#include <algorithm>

#include "base/check.h"

namespace bottomless {

FrameCounts frames_for(Bytes bytes, const FrameSizes& sizes) {
  FrameCounts counts{.large = bytes / sizes.large, .small = 0};
  const Bytes tail = bytes % sizes.large;
  // One huge page instead of up to 32 small frames is worth a sixteenth of it: 1.9 MiB take one
  // frame of 2 MiB.
  if (sizes.large > sizes.small && tail + sizes.large / 16 >= sizes.large) {
    ++counts.large;
  } else {
    counts.small = (tail + sizes.small - 1) / sizes.small;
  }
  if (sizes.large == sizes.small) counts = {.large = counts.large + counts.small, .small = 0};
  return counts;
}

std::vector<std::span<std::byte>> Frames::pieces(Bytes bytes, const FrameSizes& sizes) const {
  std::vector<std::span<std::byte>> result;
  result.reserve(slots.size());
  for (size_t i = 0; i < slots.size() && bytes > 0; ++i) {
    const Bytes here = std::min(bytes, i < counts.large ? sizes.large : sizes.small);
    result.emplace_back(slots[i], here);
    bytes -= here;
  }
  BOTTOMLESS_CHECK(bytes == 0, "a transfer is larger than its frames");
  return result;
}

Bytes FramePool::slot_bytes(Bytes limit, const FrameSizes& sizes) {
  const Bytes rounded = (limit / sizes.large + 1) * sizes.large;
  return sizes.large == sizes.small ? rounded : 2 * rounded;
}

FramePool::FramePool(AddressSpace& space, std::byte* slots_at, Bytes limit, FrameSizes sizes)
    : space_(space), sizes_(sizes), limit_(limit), budget_(limit) {
  const Bytes rounded = (limit / sizes.large + 1) * sizes.large;
  // Slots are popped from the back: the lowest address first, so that frames made one after the
  // other lie side by side and share one kernel mapping.
  for (Bytes at = rounded; at >= sizes.large; at -= sizes.large)
    large_.empty.push_back(slots_at + at - sizes.large);
  if (sizes.large == sizes.small) return;
  for (Bytes at = rounded; at >= sizes.small; at -= sizes.small) {
    small_.empty.push_back(slots_at + rounded + at - sizes.small);
  }
}

Bytes FramePool::available() const { return in_use() >= budget_ ? 0 : budget_ - in_use(); }

bool FramePool::discard_one() {
  Shelf& shelf = large_.parked.empty() ? small_ : large_;
  const Bytes bytes = large_.parked.empty() ? sizes_.small : sizes_.large;
  if (shelf.parked.empty()) return false;
  space_.blank(shelf.parked.back(), bytes);
  shelf.empty.push_back(shelf.parked.back());
  shelf.parked.pop_back();
  committed_ -= bytes;
  return true;
}

void FramePool::set_budget(Bytes budget) {
  budget_ = std::min(budget, limit_);
  while (committed_ > budget_ && discard_one()) {
  }
}

// Makes sure that `count` frames are parked on the shelf. Frames of the other size are given up for
// them if need be.
Result<void> FramePool::fill(Shelf& shelf, Bytes frame_bytes, size_t count) {
  Shelf& other = &shelf == &large_ ? small_ : large_;
  const Bytes other_bytes = &shelf == &large_ ? sizes_.small : sizes_.large;
  while (shelf.parked.size() < count) {
    while (committed_ + frame_bytes > budget_) {
      BOTTOMLESS_CHECK(!other.parked.empty(), "frames were promised that are not there");
      space_.blank(other.parked.back(), other_bytes);
      other.empty.push_back(other.parked.back());
      other.parked.pop_back();
      committed_ -= other_bytes;
    }
    std::byte* slot = shelf.empty.back();
    if (Result<void> made = space_.create(slot, frame_bytes, frame_bytes >= 2_MiB); !made.ok())
      return made;
    shelf.empty.pop_back();
    shelf.parked.push_back(slot);
    committed_ += frame_bytes;
  }
  return {};
}

Result<Frames> FramePool::take(FrameCounts counts) {
  const Bytes wanted = counts.bytes(sizes_);
  if (wanted > available()) {
    return Error{Code::no_memory, "take " + format_bytes(wanted) +
                                      " of frames: " + format_bytes(available()) + " free"};
  }
  // The size that is short is made last: it may have to give up parked frames of the other, but not
  // those asked for.
  Frames frames{.slots = {}, .counts = counts};
  frames.slots.resize(counts.large + counts.small);
  auto collect = [&](Shelf& shelf, size_t from, size_t count) {
    std::copy(shelf.parked.end() - static_cast<ptrdiff_t>(count), shelf.parked.end(),
              frames.slots.begin() + static_cast<ptrdiff_t>(from));
    shelf.parked.resize(shelf.parked.size() - count);
  };
  const bool large_first = large_.parked.size() >= counts.large;
  for (const bool large : {large_first, !large_first}) {
    Shelf& shelf = large ? large_ : small_;
    const size_t count = large ? counts.large : counts.small;
    if (Result<void> filled = fill(shelf, large ? sizes_.large : sizes_.small, count);
        !filled.ok()) {
      // What was collected so far goes back to its shelf, untouched.
      if (large == !large_first) {
        Shelf& first = large_first ? large_ : small_;
        const size_t from = large_first ? 0 : counts.large;
        const size_t taken = large_first ? counts.large : counts.small;
        for (size_t i = 0; i < taken; ++i) first.parked.push_back(frames.slots[from + i]);
      }
      return std::move(filled).error();
    }
    collect(shelf, large ? 0 : counts.large, count);
  }
  return frames;
}

void FramePool::park(Frames&& frames) {
  for (size_t i = 0; i < frames.slots.size(); ++i) {
    (i < frames.counts.large ? large_ : small_).parked.push_back(frames.slots[i]);
  }
  frames = {};
  set_budget(budget_);
}

template <class Visit>
void FramePool::each_frame(std::byte* at, const FrameCounts& counts, Visit visit) const {
  for (size_t i = 0; i < counts.large + counts.small; ++i) {
    const Bytes bytes = i < counts.large ? sizes_.large : sizes_.small;
    visit(i, at, bytes);
    at += bytes;
  }
}

void FramePool::map(std::byte* at, Frames&& frames, Access access) {
  each_frame(at, frames.counts, [&](size_t i, std::byte* to, Bytes bytes) {
    if (access != Access::write) space_.protect(frames.slots[i], bytes, access);
    space_.move(frames.slots[i], to, bytes);
    shelf(bytes).empty.push_back(frames.slots[i]);
  });
  frames = {};
}

Frames FramePool::unmap(std::byte* at, FrameCounts counts) {
  const Bytes total = counts.bytes(sizes_);
  // First hide, then move: between a move and the blanking behind it, a reader would see zeros.
  space_.protect(at, total, Access::none);
  Frames frames{.slots = {}, .counts = counts};
  frames.slots.reserve(counts.large + counts.small);
  each_frame(at, counts, [&](size_t, std::byte* from, Bytes bytes) {
    Shelf& home = shelf(bytes);
    std::byte* slot = home.empty.back();
    home.empty.pop_back();
    space_.move_leaving_ground(from, slot, bytes);
    space_.protect(slot, bytes, Access::write);
    frames.slots.push_back(slot);
  });
  space_.blank(at, total);
  return frames;
}

}  // namespace bottomless
