#include "ranks/node_shares.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <thread>

#include "ranks/sharded_storage.h"

namespace bottomless {
namespace {

constexpr Exchange::Key kOfOwners = 5, kOfNode = 6;
constexpr Bytes kSize = 700_KiB;  // two blocks
constexpr int kRanks = 4, kPerNode = 2;

// Two nodes of two ranks that gather one storage.
struct TwoNodes {
  TwoNodes()
      : rigs(kRanks),
        storage(kOfOwners, kSize, even_shares(kSize / 4, 4, kRanks)),
        exchanges(kRanks,
                  [](int, ExchangeOptions& options) { options.ranks_per_node = kPerNode; }) {
    for (int i = 0; i < kRanks; ++i) {
      nodes.emplace_back(exchanges[i], rig(i).engine(), kPiece);
      EXPECT_TRUE(nodes.back().start().ok());
      const Node node = node_of(i, kRanks, kPerNode);
      Result<NodeShares::Kept*> kept =
          nodes.back().add(kOfNode, even_shares_within(node, kSize / 4, 4, kRanks));
      EXPECT_TRUE(kept.ok());
      storage.make(i, rig(i), exchanges[i], Engine::Fetched::dropped, Format::plain, kept.value());
      storage.update(i, rig(i), 0);
      storage.offer(i, rig(i), exchanges[i], 0);
    }
  }
  ~TwoNodes() {
    for (int i = 0; i < kRanks; ++i) exchanges[i].close();
    nodes.clear();
    for (int i = 0; i < kRanks; ++i) storage.free(i, rig(i));
  }
  Rig& rig(int rank) { return rigs[static_cast<size_t>(rank)]; }
  bool right(int rank, uint64_t version) {
    return rig(rank).holds(storage.whole(rank), kSize, storage.pattern_of(version));
  }
  void wait_until_kept(int rank, uint64_t version) {
    while (!storage.within_node(rank)->complete(version)) std::this_thread::yield();
  }
  // Everybody gathers it from its owners and keeps its part.
  void gather_everywhere(uint64_t version) {
    for (int i = 0; i < kRanks; ++i) {
      EXPECT_TRUE(right(i, version));
      wait_until_kept(i, version);
    }
  }
  void push_out_everywhere() {
    for (int i = 0; i < kRanks; ++i) rig(i).push_out(storage.whole(i));
  }
  Bytes across(int rank) { return exchanges[rank].stats().received_across_bytes; }

  std::deque<Rig> rigs;
  ShardedStorage storage;
  Exchanges exchanges;
  std::deque<NodeShares> nodes;
};

TEST(NodeShares, OnlyTheFirstGatherCrossesNodes) {
  TwoNodes nodes;
  nodes.gather_everywhere(0);
  std::vector<Bytes> once;
  for (int i = 0; i < kRanks; ++i) {
    once.push_back(nodes.across(i));
    const int other = (i + kPerNode) % kRanks / kPerNode * kPerNode;
    EXPECT_EQ(once.back(),
              nodes.storage.share(other).bytes() + nodes.storage.share(other + 1).bytes());
  }
  for (int again = 0; again < 3; ++again) {
    nodes.push_out_everywhere();
    for (int i = 0; i < kRanks; ++i) {
      const Bytes before = nodes.exchanges[i].stats().received_bytes;
      EXPECT_TRUE(nodes.right(i, 0));
      EXPECT_EQ(nodes.across(i), once[static_cast<size_t>(i)]) << i;
      EXPECT_GT(nodes.exchanges[i].stats().received_bytes, before) << "it had left";
    }
  }
}

TEST(NodeShares, WhatIsKeptMayLeaveForTheStore) {
  TwoNodes nodes;
  nodes.gather_everywhere(0);
  nodes.push_out_everywhere();
  std::vector<std::byte*> others;
  for (uint64_t i = 0; i < 40; ++i) others.push_back(nodes.rig(1).filled(64_KiB, i));
  for (std::byte* other : others) nodes.rig(1).free(other);
  const Bytes read = nodes.rig(1).stats().read_bytes;
  const Bytes across = nodes.across(0);
  EXPECT_TRUE(nodes.right(0, 0));
  EXPECT_EQ(nodes.across(0), across);
  EXPECT_GT(nodes.rig(1).stats().read_bytes, read) << "read past the heap";
}

TEST(NodeShares, WhoHasNotKeptItIsPassedOver) {
  TwoNodes nodes;
  EXPECT_TRUE(nodes.right(0, 0));
  nodes.wait_until_kept(0, 0);
  nodes.rig(0).push_out(nodes.storage.whole(0));
  const Bytes across = nodes.across(0);
  EXPECT_TRUE(nodes.right(0, 0)) << "rank 1 has gathered nothing";
  EXPECT_EQ(nodes.across(0), 2 * across);
}

TEST(NodeShares, ANewVersionIsGatheredFromItsOwnersFirst) {
  TwoNodes nodes;
  nodes.gather_everywhere(0);
  for (int i = 0; i < kRanks; ++i) {
    nodes.exchanges[i].withdraw(kOfOwners);
    nodes.storage.within_node(i)->invalidate();
    nodes.storage.update(i, nodes.rig(i), 1);
  }
  for (int i = 0; i < kRanks; ++i) {
    nodes.storage.renew(i, nodes.rig(i), 1);
    nodes.storage.offer(i, nodes.rig(i), nodes.exchanges[i], 1);
  }
  for (int i = 0; i < kRanks; ++i) EXPECT_FALSE(nodes.storage.within_node(i)->complete(1));
  nodes.gather_everywhere(1);
  nodes.push_out_everywhere();
  for (int i = 0; i < kRanks; ++i) EXPECT_TRUE(nodes.right(i, 1));
}

TEST(NodeShares, WhatTheProgramHasWrittenToIsNotKept) {
  TwoNodes nodes;
  {
    Pins pins(nodes.rig(0).engine());
    nodes.rig(0).pin(pins, nodes.storage.whole(0), kSize, Access::write);
    std::memset(nodes.storage.whole(0), 7, kSize);
  }
  EXPECT_TRUE(nodes.right(1, 0));
  nodes.wait_until_kept(1, 0);
  nodes.rig(1).push_out(nodes.storage.whole(1));
  EXPECT_TRUE(nodes.right(1, 0)) << "rank 0 has something of its own";
}

TEST(NodeShares, ARankThatDiesFailsWhoNeedsItsPart) {
  TwoNodes nodes;
  nodes.gather_everywhere(0);
  nodes.push_out_everywhere();
  nodes.exchanges.network.kill(1);
  Pins pins(nodes.rig(0).engine());
  const Result<void> pinned =
      nodes.rig(0).try_pin(pins, nodes.storage.whole(0), kSize, Access::read);
  EXPECT_TRUE(names(pinned, "gather 'storage 5': rank 1 has ended")) << pinned.error().message;
}

TEST(NodeShares, WhatCannotBeKeptIsTold) {
  TwoNodes nodes;
  Rig& rig = nodes.rig(0);
  NodeShares::Kept& kept = *nodes.storage.within_node(0);
  nodes.gather_everywhere(0);
  std::vector<std::byte*> others;
  {
    Pins pins(rig.engine());
    rig.pin(pins, nodes.storage.whole(0), kSize, Access::read);
    kept.invalidate();
    kept.renew(0, nodes.storage.whole(0));
    for (uint64_t i = 0; i < 40; ++i) others.push_back(rig.filled(64_KiB, i));
    rig.engine().wait_for_io();
    rig.store().fail(FailAt{.operation = Operation::write, .from_then_on = true});
    kept.gathered(0, 0, kSize);  // for which some of the others would have to leave
    while (!nodes.nodes[0].failure()) std::this_thread::yield();
    rig.store().fail(std::nullopt);
  }
  EXPECT_NE(nodes.nodes[0].failure()->message.find("injected"), std::string::npos)
      << nodes.nodes[0].failure()->message;
  EXPECT_FALSE(kept.complete(0));
  EXPECT_TRUE(nodes.right(1, 0)) << "others have theirs from the owners";
  for (std::byte* other : others) rig.free(other);
}

}  // namespace
}  // namespace bottomless
