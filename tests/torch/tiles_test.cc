#include "torch/intercept/tiles.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace bottomless {
namespace {

constexpr int64_t kGrain = at::internal::GRAIN_SIZE;
constexpr int64_t kVector = 256;

// Where ATen's vector loop over [begin, end) on `threads` threads leaves scalar tails, as element
// ranges.
std::set<int64_t> tail_elements(int64_t begin, int64_t end, int64_t threads) {
  std::set<int64_t> tails;
  const int64_t count = end - begin;
  const int64_t parts = count < kGrain ? 1 : std::min(threads, (count + kGrain - 1) / kGrain);
  const int64_t part = (count + parts - 1) / parts;
  for (int64_t at = begin; at < end; at += part) {
    const int64_t stop = std::min(at + part, end);
    for (int64_t tail = at + (stop - at) / kVector * kVector; tail < stop; ++tail)
      tails.insert(tail);
  }
  return tails;
}

TEST(TileEnds, CoverTheRangeInOrder) {
  const std::vector<int64_t> ends = tile_ends(10'000'019, 2, 1 << 20);
  EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end()));
  EXPECT_EQ(ends.back(), 10'000'019);
  EXPECT_GT(ends.size(), 8u);
}

TEST(TileEnds, KeepEveryScalarTailWhereTheUncutRunHasIt) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    const int64_t threads = 1 + static_cast<int64_t>(random() % 16);
    const int64_t elements = 1 + static_cast<int64_t>(random() % 6'000'000);
    const int64_t most = 1 + static_cast<int64_t>(random() % 1'000'000);
    SCOPED_TRACE(std::to_string(elements) + " elements, " + std::to_string(threads) +
                 " threads, tiles of " + std::to_string(most));
    std::set<int64_t> tails;
    int64_t from = 0;
    for (const int64_t to : tile_ends(elements, threads, most)) {
      tails.merge(tail_elements(from, to, threads));
      from = to;
    }
    ASSERT_EQ(tails, tail_elements(0, elements, threads));
  }
}

TEST(TileEnds, StayNearTheSizeAimedAt) {
  int64_t from = 0;
  for (const int64_t to : tile_ends(50'000'001, 2, 1 << 20)) {
    EXPECT_LE(to - from, 1 << 20);
    from = to;
  }
}

}  // namespace
}  // namespace bottomless
