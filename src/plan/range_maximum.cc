#include "plan/range_maximum.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace bottomless {

RangeMaximum::RangeMaximum(size_t numbers)
    : leaves_(std::bit_ceil(std::max<size_t>(numbers, 1))), nodes_(2 * leaves_) {}

// A range is made of a few whole subtrees: from its two ends upwards, each right child at its begin and each left one at
// its end is one. What is above these gets its greatest anew.
void RangeMaximum::add(size_t first, size_t end, int64_t what) {
  if (first >= end) return;
  size_t left = first + leaves_;
  size_t right = end + leaves_;
  const auto change = [&](size_t node) {
    nodes_[node].added += what;
    nodes_[node].greatest += what;
  };
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) change(left++);
    if (right % 2 == 1) change(--right);
  }
  const auto renew_above = [&](size_t node) {
    for (node /= 2; node > 0; node /= 2) {
      nodes_[node].greatest =
          nodes_[node].added + std::max(nodes_[2 * node].greatest, nodes_[2 * node + 1].greatest);
    }
  };
  renew_above(first + leaves_);
  renew_above(end - 1 + leaves_);
}

int64_t RangeMaximum::greatest(size_t first, size_t end) const {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  if (first >= end) return kLeast;
  size_t left = first + leaves_;
  size_t right = end + leaves_;
  // The greatest of the subtrees found so far at each side; what is added above them counts for them, too.
  int64_t of_left = kLeast;
  int64_t of_right = kLeast;
  const auto rise = [&](int64_t& greatest, size_t node) {
    if (greatest != kLeast) greatest += nodes_[node].added;
  };
  size_t left_path = left;  // the node above the subtrees at the left side
  size_t right_path = right - 1;
  for (; left < right; left /= 2, right /= 2) {
    if (left % 2 == 1) of_left = std::max(of_left, nodes_[left++].greatest);
    if (right % 2 == 1) of_right = std::max(of_right, nodes_[--right].greatest);
    left_path /= 2;
    right_path /= 2;
    rise(of_left, left_path);
    rise(of_right, right_path);
  }
  for (left_path /= 2, right_path /= 2; left_path > 0; left_path /= 2, right_path /= 2) {
    rise(of_left, left_path);
    rise(of_right, right_path);
  }
  return std::max(of_left, of_right);
}

int64_t RangeMaximum::at(size_t index) const { return greatest(index, index + 1); }

}  // namespace bottomless
