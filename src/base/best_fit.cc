#include "base/best_fit.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace bottomless {
namespace {

uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

void BestFit::insert(uint64_t start, uint64_t size) {
  holes_.emplace(start, size);
  by_size_.emplace(size, start);
}

void BestFit::erase(Holes::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

std::optional<uint64_t> BestFit::allocate(uint64_t size, uint64_t alignment) {
  BOTTOMLESS_CHECK(size > 0 && alignment > 0, "an empty interval was asked for");
  for (auto found = by_size_.lower_bound({size, 0}); found != by_size_.end(); ++found) {
    const auto [hole_size, hole] = *found;
    const uint64_t start = round_up(hole, alignment);
    const uint64_t hole_end = hole + hole_size;
    if (start + size > hole_end) continue;
    erase(holes_.find(hole));
    if (hole < start) insert(hole, start - hole);
    if (start + size < hole_end) insert(start + size, hole_end - start - size);
    used_ += size;
    return start;
  }
  const uint64_t start = round_up(top_, alignment);
  if (start > end_ || end_ - start < size) return std::nullopt;
  if (top_ < start) insert(top_, start - top_);
  top_ = start + size;
  used_ += size;
  high_water_ = std::max(high_water_, top_);
  return start;
}

void BestFit::free(uint64_t start, uint64_t size) {
  BOTTOMLESS_CHECK(start + size <= end_ && size <= used_,
                   "an interval was freed that was never given");
  BOTTOMLESS_CHECK(start + size <= top_, "an interval was freed twice");
  used_ -= size;
  auto next = holes_.lower_bound(start);
  BOTTOMLESS_CHECK(next == holes_.end() || start + size <= next->first,
                   "an interval was freed twice");
  if (next != holes_.end() && next->first == start + size) {
    size += next->second;
    erase(next++);
  }
  if (next != holes_.begin()) {
    const auto previous = std::prev(next);
    BOTTOMLESS_CHECK(previous->first + previous->second <= start, "an interval was freed twice");
    if (previous->first + previous->second == start) {
      start = previous->first;
      size += previous->second;
      erase(previous);
    }
  }
  if (start + size == top_) {
    top_ = start;
  } else {
    insert(start, size);
  }
}

void BestFit::grow(uint64_t new_end) {
  BOTTOMLESS_CHECK(new_end >= end_, "an interval range cannot shrink");
  end_ = new_end;
}

}  // namespace bottomless
