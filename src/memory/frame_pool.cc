#include "memory/frame_pool.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace bottomless {
namespace {

Bytes slots_of_one_class(Bytes limit, const FrameSizes& sizes) {
  return (limit / sizes.large + 1) * sizes.large;
}

}  // namespace

Bytes FrameCounts::bytes(const FrameSizes& sizes) const {
  Bytes total = 0;
  for (size_t c = 0; c < sizes.classes(); ++c) total += of[c] * sizes.of(c);
  return total;
}

size_t FrameCounts::total() const { return std::accumulate(of.begin(), of.end(), size_t{0}); }

FrameCounts frames_for(Bytes bytes, const FrameSizes& sizes) {
  const Bytes unit =
      std::clamp(std::bit_floor(std::max<Bytes>(bytes / 16, 1)), sizes.small, sizes.large);
  Bytes rest = (bytes + unit - 1) / unit * unit;
  FrameCounts counts;
  for (size_t c = 0; c < sizes.classes(); ++c) {
    counts.of[c] = static_cast<uint32_t>(rest / sizes.of(c));
    rest %= sizes.of(c);
  }
  return counts;
}

std::vector<std::span<std::byte>> Frames::pieces(Bytes bytes, const FrameSizes& sizes) const {
  std::vector<std::span<std::byte>> result;
  result.reserve(slots.size());
  size_t i = 0;
  for (size_t c = 0; c < sizes.classes(); ++c) {
    for (uint32_t n = 0; n < counts.of[c] && bytes > 0; ++n) {
      const Bytes here = std::min(bytes, sizes.of(c));
      result.emplace_back(slots[i++], here);
      bytes -= here;
    }
  }
  BOTTOMLESS_CHECK(bytes == 0, "a transfer is larger than its frames");
  return result;
}

Bytes FramePool::slot_bytes(Bytes limit, const FrameSizes& sizes) {
  return sizes.classes() * slots_of_one_class(limit, sizes);
}

FramePool::FramePool(AddressSpace& space, std::byte* slots_at, Bytes limit, FrameSizes sizes)
    : space_(space),
      sizes_(sizes),
      limit_(limit),
      budget_(limit),
      shelves_(sizes.classes()),
      slots_at_(slots_at) {
  BOTTOMLESS_CHECK(sizes.classes() <= kMostFrameClasses, "the frame sizes lie too far apart");
}

Bytes FramePool::parked() const {
  Bytes total = 0;
  for (size_t c = 0; c < shelves_.size(); ++c) total += shelves_[c].parked.size() * sizes_.of(c);
  return total;
}

Bytes FramePool::available() const { return in_use() >= budget_ ? 0 : budget_ - in_use(); }

// An address for a frame: one that a frame has left, else the next that was never used. Frames made
// one after the other lie side by side, so that the kernel keeps them as one mapping.
std::byte* FramePool::empty_slot(size_t size_class) {
  Shelf& shelf = shelves_[size_class];
  if (shelf.empty.empty()) {
    const Bytes shelf_at = size_class * slots_of_one_class(limit_, sizes_);
    return slots_at_ + shelf_at + shelf.slots_used++ * sizes_.of(size_class);
  }
  std::byte* slot = shelf.empty.back();
  shelf.empty.pop_back();
  return slot;
}

void FramePool::discard(size_t size_class) {
  Shelf& shelf = shelves_[size_class];
  space_.blank(shelf.parked.back(), sizes_.of(size_class));
  shelf.empty.push_back(shelf.parked.back());
  shelf.parked.pop_back();
  committed_ -= sizes_.of(size_class);
  --frames_;
}

// Gives a parked frame back to the kernel, of the class that has most bytes idle. False when there
// is none.
bool FramePool::discard_one_except(size_t size_class) {
  size_t most = shelves_.size();
  for (size_t c = 0; c < shelves_.size(); ++c) {
    if (c == size_class || shelves_[c].parked.empty()) continue;
    if (most == shelves_.size() ||
        shelves_[c].parked.size() * sizes_.of(c) > shelves_[most].parked.size() * sizes_.of(most)) {
      most = c;
    }
  }
  if (most == shelves_.size()) return false;
  discard(most);
  return true;
}

void FramePool::set_budget(Bytes budget) {
  budget_ = std::min(budget, limit_);
  while (committed_ > budget_ && discard_one_except(shelves_.size())) {
  }
}

// Makes sure that `count` frames are parked on a shelf. Idle frames of other sizes are given up for
// them if need be.
Result<void> FramePool::fill(size_t size_class, size_t count) {
  const Bytes bytes = sizes_.of(size_class);
  Shelf& shelf = shelves_[size_class];
  while (shelf.parked.size() < count) {
    while (committed_ + bytes > budget_) {
      BOTTOMLESS_CHECK(discard_one_except(size_class), "frames were promised that are not there");
    }
    std::byte* slot = empty_slot(size_class);
    if (Result<void> made = space_.create(slot, bytes, bytes >= 2_MiB); !made.ok()) {
      shelf.empty.push_back(slot);
      return made;
    }
    shelf.parked.push_back(slot);
    committed_ += bytes;
    ++frames_;
  }
  return {};
}

Result<Frames> FramePool::take(FrameCounts counts) {
  const Bytes wanted = counts.bytes(sizes_);
  if (wanted > available()) {
    return Error{Code::no_memory, "take " + format_bytes(wanted) +
                                      " of frames: " + format_bytes(available()) + " free"};
  }
  // First set aside what is there, so that it is not given up to make what is not.
  std::vector<std::vector<std::byte*>> taken(shelves_.size());
  const auto collect = [&](size_t c) {
    std::vector<std::byte*>& parked = shelves_[c].parked;
    while (taken[c].size() < counts.of[c] && !parked.empty()) {
      taken[c].push_back(parked.back());
      parked.pop_back();
    }
  };
  for (size_t c = 0; c < shelves_.size(); ++c) collect(c);
  for (size_t c = 0; c < shelves_.size(); ++c) {
    if (Result<void> filled = fill(c, counts.of[c] - taken[c].size()); !filled.ok()) {
      for (size_t k = 0; k < shelves_.size(); ++k) {
        shelves_[k].parked.insert(shelves_[k].parked.end(), taken[k].begin(), taken[k].end());
      }
      return std::move(filled).error();
    }
    collect(c);
  }
  Frames frames{.slots = {}, .counts = counts};
  for (const auto& of_class : taken)
    frames.slots.insert(frames.slots.end(), of_class.begin(), of_class.end());
  return frames;
}

void FramePool::park(Frames&& frames) {
  size_t i = 0;
  for (size_t c = 0; c < shelves_.size(); ++c) {
    for (uint32_t n = 0; n < frames.counts.of[c]; ++n)
      shelves_[c].parked.push_back(frames.slots[i++]);
  }
  frames = {};
  set_budget(budget_);
}

template <class Visit>
void FramePool::each_frame(std::byte* at, const FrameCounts& counts, Visit visit) const {
  size_t i = 0;
  for (size_t c = 0; c < shelves_.size(); ++c) {
    for (uint32_t n = 0; n < counts.of[c]; ++n) {
      visit(i++, c, at, sizes_.of(c));
      at += sizes_.of(c);
    }
  }
}

void FramePool::map(std::byte* at, Frames&& frames, Access access) {
  const Bytes total = frames.counts.bytes(sizes_);
  each_frame(at, frames.counts, [&](size_t i, size_t c, std::byte* to, Bytes bytes) {
    // Never writable while it moves: the kernel would count it twice against RLIMIT_DATA, and
    // refuse at the limit.
    space_.protect(frames.slots[i], bytes, access == Access::none ? Access::none : Access::read);
    space_.move(frames.slots[i], to, bytes);
    shelves_[c].empty.push_back(frames.slots[i]);
  });
  frames = {};
  if (access == Access::write) space_.protect(at, total, access);
}

Frames FramePool::unmap(std::byte* at, FrameCounts counts) {
  const Bytes total = counts.bytes(sizes_);
  // First hide, then move: between a move and the blanking behind it, a reader would see zeros.
  space_.protect(at, total, Access::none);
  Frames frames{.slots = {}, .counts = counts};
  frames.slots.reserve(counts.total());
  each_frame(at, counts, [&](size_t, size_t c, std::byte* from, Bytes bytes) {
    std::byte* slot = empty_slot(c);
    space_.move_leaving_ground(from, slot, bytes);
    space_.protect(slot, bytes, Access::write);
    frames.slots.push_back(slot);
  });
  space_.blank(at, total);
  return frames;
}

}  // namespace bottomless
