#include "tokenizers/bpe/merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "base/check.h"

namespace bottomless::text {
namespace {

constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();  // ids are not negative
constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
// Up to here looking through all pairs for the first one is quicker than keeping a queue.
constexpr size_t kMostToSearch = 48;

uint64_t pair_of(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

Merges::Merges(size_t pairs)
    : table_(std::bit_ceil(std::max<size_t>(2 * pairs, 2)), Merge{kEmpty, kNever, -1}) {}

size_t Merges::place_of(uint64_t pair) const {
  const size_t mask = table_.size() - 1;
  uint64_t mixed = pair * 0x9E3779B97F4A7C15u;
  size_t place = (mixed ^ (mixed >> 32)) & mask;
  while (table_[place].pair != pair && table_[place].pair != kEmpty) place = (place + 1) & mask;
  return place;
}

void Merges::add(int32_t left, int32_t right, int32_t merged) {
  BOTTOMLESS_CHECK(size_t{next_rank_} + 1 < table_.size(), "more pairs than there is room for");
  const uint64_t pair = pair_of(left, right);
  table_[place_of(pair)] = {pair, next_rank_++, merged};
}

const Merges::Merge* Merges::find(int32_t left, int32_t right) const {
  const Merge& merge = table_[place_of(pair_of(left, right))];
  return merge.pair == kEmpty ? nullptr : &merge;
}

void Merges::apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kMostToSearch) {
    apply_by_search(symbols);
  } else {
    apply_by_queue(symbols);
  }
}

void Merges::apply_by_search(std::vector<int32_t>& symbols) const {
  std::array<uint32_t, kMostToSearch> ranks;  // of symbol i with the one behind it
  std::array<int32_t, kMostToSearch> merged;
  size_t count = symbols.size();
  const auto look_up = [&](size_t i) {
    const Merge* merge = find(symbols[i], symbols[i + 1]);
    ranks[i] = merge == nullptr ? kNever : merge->rank;
    merged[i] = merge == nullptr ? -1 : merge->merged;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t first = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[first]) first = i;
    }
    if (ranks[first] == kNever) break;
    symbols[first] = merged[first];
    for (size_t i = first + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    if (first + 1 < count) look_up(first);
    if (first > 0) look_up(first - 1);
  }
  symbols.resize(count);
}

void Merges::apply_by_queue(std::vector<int32_t>& symbols) const {
  BOTTOMLESS_CHECK(symbols.size() < kNever, "a word of 4 Gi characters");
  constexpr uint32_t kEnd = kNever;
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> previous(count);
  std::vector<uint32_t> next(count);
  for (uint32_t i = 0; i < count; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == count ? kEnd : i + 1;
  }
  constexpr int32_t kGone = -1;
  using Candidate = std::pair<uint32_t, uint32_t>;  // rank, place of the left symbol
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](uint32_t left) {
    if (left == kEnd || next[left] == kEnd) return;
    const Merge* merge = find(symbols[left], symbols[next[left]]);
    if (merge != nullptr) queue.push({merge->rank, left});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, left] = queue.top();
    queue.pop();
    if (symbols[left] == kGone || next[left] == kEnd) continue;
    const uint32_t right = next[left];
    const Merge* merge = find(symbols[left], symbols[right]);
    if (merge == nullptr || merge->rank != rank) continue;  // one of the two was merged meanwhile
    symbols[left] = merge->merged;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[right] != kEnd) previous[next[right]] = left;
    offer(previous[left]);
    offer(left);
  }
  std::erase(symbols, kGone);
}

}  // namespace bottomless::text
