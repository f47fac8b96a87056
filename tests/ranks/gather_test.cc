#include "ranks/gather.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <deque>
#include <thread>

#include "ranks/sharded_storage.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr Bytes kSize = 700_KiB;  // two blocks

// One storage over several ranks, in its first version.
struct Sharing {
  Sharing(
      int ranks, std::vector<Share> shares,
      const std::function<void(int, ExchangeOptions&)>& adjust = [](int, auto&) {},
      Format format = Format::plain, const RigOptions& options = {})
      : storage(5, kSize, std::move(shares)), exchanges(ranks, adjust) {
    for (int i = 0; i < ranks; ++i) {
      rigs.emplace_back(options);
      storage.make(i, rig(i), exchanges[i], Engine::Fetched::dropped, format);
      storage.update(i, rig(i), 0);
      if (storage.part(i) != nullptr) storage.offer(i, rig(i), exchanges[i], 0);
    }
  }
  ~Sharing() {
    for (size_t i = 0; i < rigs.size(); ++i) {
      exchanges[static_cast<int>(i)].withdraw(5);
      storage.free(static_cast<int>(i), rigs[i]);
    }
  }
  Rig& rig(int rank) { return rigs[static_cast<size_t>(rank)]; }
  bool right(int rank, uint64_t version) {
    return rig(rank).holds(storage.whole(rank), kSize, storage.pattern_of(version));
  }

  std::deque<Rig> rigs;
  ShardedStorage storage;
  Exchanges exchanges;
};

TEST(Gather, BringsTheSharesOfAllRanksTogether) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    Sharing sharing(ranks, even_shares(kSize / 4, 4, ranks));
    for (int i = 0; i < ranks; ++i) EXPECT_TRUE(sharing.right(i, 0)) << i << " of " << ranks;
  }
}

TEST(Gather, RanksMayHaveNothingOrAll) {
  for (const int owner : {0, 1, 2}) {
    Sharing sharing(3, whole_share(kSize, owner, 3));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(sharing.right(i, 0)) << i << " of " << owner;
  }
}

TEST(Gather, CrossesTheNetworkOnlyForWhatOthersHave) {
  Sharing sharing(2, even_shares(kSize / 4, 4, 2));
  EXPECT_TRUE(sharing.right(0, 0));
  EXPECT_EQ(sharing.exchanges[0].stats().received_bytes, sharing.storage.share(1).bytes());
}

// What others are given is read past the heap, a part of a block at a time.
TEST(Gather, AFlippedBitOnTheDiskOfOneRankIsAnErrorForAllWhoGatherIt) {
  constexpr int kRanks = 3;
  Sharing sharing(kRanks, even_shares(kSize / 4, 4, kRanks), [](int, auto&) {}, Format::plain,
                  {.checksums = true});
  Rig& owner = sharing.rig(1);
  owner.push_out(sharing.storage.part(1));
  owner.engine().wait_for_io();
  const auto gather = [&](int rank) {
    Pins pins(sharing.rig(rank).engine());
    return sharing.rig(rank).try_pin(pins, sharing.storage.whole(rank), kSize, Access::read);
  };
  owner.store().corrupt();
  for (int i = 0; i < kRanks; ++i) {
    const Result<void> gathered = gather(i);
    EXPECT_TRUE(names(gathered, "gather 'storage 5': rank 1: read"))
        << i << ": " << (gathered.ok() ? "no error" : gathered.error().message);
    EXPECT_TRUE(names(gathered, "it is not what was written there")) << i;
  }
  owner.store().corrupt();  // as it was
  for (int i = 0; i < kRanks; ++i) EXPECT_TRUE(sharing.right(i, 0)) << i;
}

TEST(Gather, AFailureOfOneRankIsThatOfTheOperationAndNamesBoth) {
  Sharing sharing(3, even_shares(kSize / 4, 4, 3));
  Rig& owner = sharing.rig(2);
  owner.push_out(sharing.storage.part(2));
  owner.engine().wait_for_io();
  owner.store().fail(FailAt{.operation = Operation::read, .from_then_on = true});
  {
    Pins pins(sharing.rig(0).engine());
    const Result<void> pinned =
        sharing.rig(0).try_pin(pins, sharing.storage.whole(0), kSize, Access::read);
    EXPECT_TRUE(names(pinned, "gather 'storage 5': rank 2: injected")) << pinned.error().message;
  }
  sharing.rig(0).engine().wait_for_io();
  owner.store().fail(std::nullopt);
  EXPECT_TRUE(sharing.right(0, 0)) << "the next one tries again";
}

TEST(Gather, ARankThatDiesFailsWhoNeedsItsShare) {
  Sharing sharing(3, even_shares(kSize / 4, 4, 3));
  sharing.exchanges.network.kill(2);
  Pins pins(sharing.rig(0).engine());
  const Result<void> pinned =
      sharing.rig(0).try_pin(pins, sharing.storage.whole(0), kSize, Access::read);
  EXPECT_TRUE(names(pinned, "gather 'storage 5': rank 2 has ended")) << pinned.error().message;
}

TEST(Gather, AfterCloseItFails) {
  Sharing sharing(2, even_shares(kSize / 4, 4, 2));
  sharing.exchanges[0].close();
  Pins pins(sharing.rig(0).engine());
  const Result<void> pinned =
      sharing.rig(0).try_pin(pins, sharing.storage.whole(0), kSize, Access::read);
  EXPECT_TRUE(names(pinned, "gather 'storage 5': this rank has left")) << pinned.error().message;
}

TEST(Gather, WhatWasBegunAheadIsHurriedAndComes) {
  Sharing sharing(2, even_shares(kSize / 4, 4, 2));
  for (const int rank : {0, 1}) sharing.exchanges[rank].withdraw(5);
  const Need need{.address = sharing.storage.whole(0), .bytes = kSize, .access = Access::read};
  sharing.rig(0).engine().prefetch({&need, 1});
  std::thread waits([&] { EXPECT_TRUE(sharing.right(0, 0)); });
  for (const int rank : {1, 0})
    sharing.storage.offer(rank, sharing.rig(rank), sharing.exchanges[rank], 0);
  waits.join();
}

TEST(Gather, WhatIsOutdatedWhileItComesIsAskedForAgain) {
  Sharing sharing(2, even_shares(kSize / 4, 4, 2));
  Rig& owner = sharing.rig(1);
  owner.push_out(sharing.storage.part(1));
  owner.engine().wait_for_io();
  owner.store().hold();
  const Need need{.address = sharing.storage.whole(0), .bytes = kSize, .access = Access::read};
  sharing.rig(0).engine().prefetch({&need, 1});
  owner.store().wait_for_pending(1);
  sharing.storage.source(0).renew(1);
  sharing.rig(0).engine().invalidate(sharing.storage.whole(0));
  owner.store().release();
  for (const int rank : {0, 1}) {
    sharing.exchanges[rank].withdraw(5);
    sharing.storage.update(rank, sharing.rig(rank), 1);
    sharing.storage.offer(rank, sharing.rig(rank), sharing.exchanges[rank], 1);
  }
  EXPECT_TRUE(sharing.right(0, 1));
}

TEST(Gather, WhatIsFreedWhileItComesHarmsNobody) {
  Rig rig;
  Exchanges exchanges(2);
  ShardedStorage storage(5, kSize, whole_share(kSize, 1, 2));
  storage.make(0, rig, exchanges[0], Engine::Fetched::kept);
  const Need need{.address = storage.whole(0), .bytes = kSize, .access = Access::read};
  rig.engine().prefetch({&need, 1});
  storage.free(0, rig);
  const std::vector<std::byte> memory = pattern(kSize, 1);
  exchanges[1].offer(5, 0, plain(memory));
  rig.engine().wait_for_io();
  EXPECT_EQ(rig.engine().live_storages(), 0u);
}

TEST(Gather, QuantisedIsTheSameOnEveryRankAndItsOwner) {
  Sharing sharing(
      3, even_shares(kSize / 4, 4, 3), [](int, auto&) {}, Format::eight_bits);
  std::vector<float> numbers(kSize / 4);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i) * 0.37f);
  const auto bytes = std::as_bytes(std::span(numbers));
  for (int i = 0; i < 3; ++i) {
    const Share& share = sharing.storage.share(i);
    ShardedStorage::fill(sharing.rig(i), sharing.storage.part(i),
                         bytes.subspan(share.begin, share.bytes()));
    sharing.storage.offer(i, sharing.rig(i), sharing.exchanges[i], 1);
    sharing.storage.source(i).renew(1);
  }
  std::vector<std::vector<float>> got(3, std::vector<float>(numbers.size()));
  for (int i = 0; i < 3; ++i) {
    Pins pins(sharing.rig(i).engine());
    sharing.rig(i).pin(pins, sharing.storage.whole(i), kSize, Access::read);
    std::memcpy(got[static_cast<size_t>(i)].data(), sharing.storage.whole(i), kSize);
  }
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
  for (size_t i = 0; i < numbers.size(); ++i)
    ASSERT_NEAR(got[0][i], numbers[i], 1.0 / 254 * 1.0001) << i;
}

// Steps as of a training: ranks read what they like of the storages, at their own pace and in their own order; then all
// wait for each other, and the owners write the next version of some.
class Training {
 public:
  Training(int ranks, int per_node, const Random& random)
      : random_(random),
        exchanges_(ranks,
                   [this](int rank, ExchangeOptions& options) {
                     options.on_notice = [this, rank](int from, const Notice& notice) {
                       rounds_[static_cast<size_t>(rank)][static_cast<size_t>(from)] = notice.first;
                     };
                   },
                   {.most_delay_us = 300, .seed = random.seed()}) {
    Random dice = random.fork(100);
    for (int i = 0; i < ranks; ++i) {
      rigs_.emplace_back(
          RigOptions{.eviction = dice.one_in(4) ? Eviction::eagerly : Eviction::when_needed,
                     .store = {.order = Order::random, .most_delay_us = 200, .seed = dice.next()}});
    }
    for (int i = 0; i < ranks; ++i) {
      nodes_.emplace_back(exchanges_[i], rigs_[static_cast<size_t>(i)].engine(), kPiece);
      EXPECT_TRUE(nodes_.back().start().ok());
    }
    for (uint64_t key = 0; key < kStorages; ++key) {
      const Bytes elements = dice.between(1, 900_KiB / 4);
      storages_.emplace_back(
          key, elements * 4,
          dice.one_in(4)
              ? whole_share(elements * 4,
                            static_cast<int>(dice.below(static_cast<uint64_t>(ranks))), ranks)
              : even_shares(elements, 4, ranks));
      for (int i = 0; i < ranks; ++i) {
        NodeShares::Kept* within_node = nullptr;
        if (per_node > 0) {
          const Node node = node_of(i, ranks, per_node);
          within_node = nodes_[static_cast<size_t>(i)]
                            .add(kStorages + key, even_shares_within(node, elements, 4, ranks))
                            .value();
        }
        storages_.back().make(i, rigs_[static_cast<size_t>(i)], exchanges_[i],
                              dice.one_in(2) ? Engine::Fetched::kept : Engine::Fetched::dropped,
                              Format::plain, within_node);
      }
    }
  }
  ~Training() {
    for (int i = 0; i < exchanges_.network.ranks(); ++i) exchanges_[i].close();
    nodes_.clear();
    for (int i = 0; i < exchanges_.network.ranks(); ++i) {
      for (ShardedStorage& storage : storages_) storage.free(i, rigs_[static_cast<size_t>(i)]);
    }
  }

  void run(uint64_t steps) {
    std::vector<std::thread> threads;
    for (int i = 0; i < exchanges_.network.ranks(); ++i)
      threads.emplace_back([this, i, steps] { program(i, steps); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static constexpr uint64_t kStorages = 6;

  void program(int rank, uint64_t steps) {
    Rig& rig = rigs_[static_cast<size_t>(rank)];
    Exchange& exchange = exchanges_[rank];
    Random dice = random_.fork(static_cast<uint64_t>(rank));
    Random common = random_.fork(50);  // the same on every rank
    std::array<uint64_t, kStorages> versions{};
    for (ShardedStorage& storage : storages_) publish(rank, storage, 0);
    for (uint64_t step = 1; step <= steps; ++step) {
      for (uint64_t reads = dice.between(1, 12); reads > 0; --reads) read(rank, dice, versions);
      if (dice.one_in(2)) rig.engine().end_step();
      // All have read what they wanted of these versions.
      ASSERT_TRUE(exchange.tell_all({.first = step}).ok());
      const auto behind = [&] {
        for (int i = 0; i < exchange.ranks(); ++i) {
          if (i != rank && rounds_[static_cast<size_t>(rank)][static_cast<size_t>(i)] < step)
            return i;
        }
        return -1;
      };
      const Result<void> waited = exchange.wait(
          "wait for the others", [&] { return behind() < 0; }, behind);
      ASSERT_TRUE(waited.ok()) << waited.error().message;
      for (uint64_t key = 0; key < kStorages; ++key) {
        if (common.one_in(3)) continue;
        if (storages_[key].within_node(rank) != nullptr)
          storages_[key].within_node(rank)->invalidate();
        storages_[key].renew(rank, rig, ++versions[key]);
        publish(rank, storages_[key], versions[key]);
      }
    }
    // Nobody leaves before all have what they want.
    ASSERT_TRUE(exchange.tell_all({.first = steps + 1}).ok());
    const auto gone = [&] {
      for (int i = 0; i < exchange.ranks(); ++i) {
        if (i != rank && rounds_[static_cast<size_t>(rank)][static_cast<size_t>(i)] <= steps)
          return i;
      }
      return -1;
    };
    EXPECT_TRUE(exchange
                    .wait(
                        "wait for the end", [&] { return gone() < 0; }, gone)
                    .ok());
  }

  void publish(int rank, ShardedStorage& storage, uint64_t version) {
    if (storage.part(rank) == nullptr) return;
    Rig& rig = rigs_[static_cast<size_t>(rank)];
    // Others may still be fetching ahead what nobody there wants any more: not while it is written to.
    exchanges_[rank].withdraw(storage.key());
    storage.update(rank, rig, version);
    storage.offer(rank, rig, exchanges_[rank], version);
  }

  void read(int rank, Random& dice, const std::array<uint64_t, kStorages>& versions) {
    Rig& rig = rigs_[static_cast<size_t>(rank)];
    const uint64_t key = dice.below(kStorages);
    ShardedStorage& storage = storages_[key];
    const Bytes from = dice.below(storage.bytes() / 8 + 1) * 8;
    const Bytes bytes = dice.between(0, storage.bytes() - std::min(from, storage.bytes())) / 8 * 8;
    if (bytes == 0) return;
    const Need need{.address = storage.whole(rank) + from, .bytes = bytes, .access = Access::read};
    if (dice.one_in(4)) return rig.engine().prefetch({&need, 1});
    Pins pins(rig.engine());
    const Result<void> pinned = rig.engine().pin(pins, {&need, 1}, "read");
    ASSERT_TRUE(pinned.ok()) << pinned.error().message;
    EXPECT_TRUE(continues_pattern(storage.whole(rank) + from, bytes,
                                  storage.pattern_of(versions[key]), from))
        << "rank " << rank << " storage " << key << " version " << versions[key];
  }

  const Random& random_;
  std::array<std::array<std::atomic<uint64_t>, 5>, 5>
      rounds_{};  // of each rank: of whom it knows what
  std::deque<Rig> rigs_;
  std::deque<ShardedStorage> storages_;
  Exchanges exchanges_;
  std::deque<NodeShares> nodes_;
};

TEST(Gather, RanksAtTheirOwnPaceAlwaysSeeTheVersionTheyAskFor) {
  Random random(20261117);
  BOTTOMLESS_TRACE_SEED(random);
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (const int per_node : {0, 2, 3}) {
      Training training(ranks, per_node, random);
      training.run(per_node == 0 ? 8 : 5);
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace bottomless
