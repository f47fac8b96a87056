#include "ranks/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace bottomless {
namespace {

TEST(EvenShares, CoverEverythingOnceInOrder) {
  for (const Bytes elements : {0, 1, 5, 1023, 1024, 1025, 10'000, 1'000'003}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const std::vector<Share> shares = even_shares(elements, 4, ranks);
      ASSERT_EQ(shares.size(), static_cast<size_t>(ranks));
      Bytes end = 0;
      for (const Share& share : shares) {
        EXPECT_EQ(share.begin, end);
        EXPECT_LE(share.begin, share.end);
        EXPECT_TRUE(share.end % 4096 == 0 || share.end == elements * 4);
        end = share.end;
      }
      EXPECT_EQ(end, elements * 4);
    }
  }
}

TEST(EvenShares, DifferByAtMostOneUnit) {
  const std::vector<Share> shares = even_shares(10'000'000, 4, 7);
  const auto [least, most] = std::minmax_element(
      shares.begin(), shares.end() - 1, [](auto& a, auto& b) { return a.bytes() < b.bytes(); });
  EXPECT_LE(most->bytes() - least->bytes(), Bytes{4096});
}

TEST(WholeShare, BelongsToItsOwner) {
  const std::vector<Share> shares = whole_share(100, 1, 3);
  EXPECT_EQ(shares[0].bytes(), 0u);
  EXPECT_EQ(shares[1].bytes(), 100u);
  EXPECT_EQ(shares[2].bytes(), 0u);
}

TEST(Owners, HaveAboutTheSame) {
  const std::vector<int> owners = owners_of({7, 1, 5, 3, 3, 1}, 2);
  Bytes first = 0;
  const std::vector<Bytes> sizes{7, 1, 5, 3, 3, 1};
  for (size_t i = 0; i < sizes.size(); ++i) first += owners[i] == 0 ? sizes[i] : 0;
  EXPECT_EQ(first, 10u);
}

TEST(Layout, NodesAreConsecutiveRanksAndTheLastMayHaveFewer) {
  EXPECT_EQ(node_of(3, 5, 0).ranks, 5);
  EXPECT_EQ(node_of(3, 5, 2).first, 2);
  EXPECT_EQ(node_of(4, 5, 2).first, 4);
  EXPECT_EQ(node_of(4, 5, 2).ranks, 1);
  EXPECT_TRUE(node_of(1, 4, 2).has(0));
  EXPECT_FALSE(node_of(1, 4, 2).has(2));
}

TEST(Layout, SharesWithinANodeAreOfAllOfIt) {
  const std::vector<Share> shares = even_shares_within({.first = 2, .ranks = 2}, 10000, 4, 5);
  ASSERT_EQ(shares.size(), 5u);
  EXPECT_EQ(shares[1].bytes(), 0u);
  EXPECT_EQ(shares[2].begin, 0u);
  EXPECT_EQ(shares[2].end, shares[3].begin);
  EXPECT_EQ(shares[3].end, 40000u);
  EXPECT_EQ(shares[4].bytes(), 0u);
}

}  // namespace
}  // namespace bottomless
