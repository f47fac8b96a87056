#include "base/first_fit.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace bottomless {
namespace {

int magnitude(uint64_t size) { return std::bit_width(size) - 1; }

uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

FirstFit::FirstFit(uint64_t end) : end_(end) {
  if (end > 0) insert(0, end);
}

void FirstFit::insert(uint64_t start, uint64_t size) {
  holes_.emplace(start, size);
  by_magnitude_[magnitude(size)].insert(start);
}

void FirstFit::erase(std::map<uint64_t, uint64_t>::iterator hole) {
  auto bucket = by_magnitude_.find(magnitude(hole->second));
  bucket->second.erase(hole->first);
  if (bucket->second.empty()) by_magnitude_.erase(bucket);
  holes_.erase(hole);
}

std::optional<uint64_t> FirstFit::allocate(uint64_t size, uint64_t alignment) {
  BOTTOMLESS_CHECK(size > 0 && alignment > 0, "an empty interval was asked for");
  std::optional<uint64_t> best;
  for (auto bucket = by_magnitude_.lower_bound(magnitude(size)); bucket != by_magnitude_.end();
       ++bucket) {
    for (const uint64_t start : bucket->second) {
      if (best && start >= *best) break;
      const uint64_t aligned = round_up(start, alignment);
      if (aligned + size > start + holes_.at(start)) continue;
      best = start;
      break;
    }
  }
  if (!best) return std::nullopt;
  const auto hole = holes_.find(*best);
  const uint64_t hole_end = hole->first + hole->second;
  const uint64_t start = round_up(hole->first, alignment);
  const uint64_t before = start - hole->first;
  const uint64_t hole_start = hole->first;
  erase(hole);
  if (before > 0) insert(hole_start, before);
  if (start + size < hole_end) insert(start + size, hole_end - start - size);
  used_ += size;
  high_water_ = std::max(high_water_, start + size);
  return start;
}

void FirstFit::free(uint64_t start, uint64_t size) {
  BOTTOMLESS_CHECK(start + size <= end_ && size <= used_,
                   "an interval was freed that was never given");
  used_ -= size;
  auto next = holes_.lower_bound(start);
  BOTTOMLESS_CHECK(next == holes_.end() || start + size <= next->first,
                   "an interval was freed twice");
  if (next != holes_.end() && next->first == start + size) {
    size += next->second;
    auto merged = next++;
    erase(merged);
  }
  if (next != holes_.begin()) {
    auto previous = std::prev(next);
    BOTTOMLESS_CHECK(previous->first + previous->second <= start, "an interval was freed twice");
    if (previous->first + previous->second == start) {
      start = previous->first;
      size += previous->second;
      erase(previous);
    }
  }
  insert(start, size);
}

uint64_t FirstFit::tail() const {
  if (holes_.empty()) return 0;
  const auto& [start, size] = *holes_.rbegin();
  return start + size == end_ ? size : 0;
}

void FirstFit::grow(uint64_t new_end) {
  BOTTOMLESS_CHECK(new_end >= end_, "an interval range cannot shrink");
  if (new_end == end_) return;
  const uint64_t added = new_end - end_;
  const uint64_t start = end_;
  end_ = new_end;
  used_ += added;  // given and freed at once, so that it merges with a hole before it
  free(start, added);
}

}  // namespace bottomless
