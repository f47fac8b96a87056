// Reductions of several ranks in one process. Numbers are whole, so that sums are exact in any order; that the order is fixed is
// asserted by itself.
#include "ranks/reduction.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ranks/exchanges.h"
#include "ranks/shard_protocol.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

using Numbers = std::vector<float>;

ReducedTensor reduced(std::shared_ptr<Numbers> numbers) {
  return {{.address = reinterpret_cast<const std::byte*>(numbers->data()),
           .bytes = numbers->size() * sizeof(float),
           .element = Element::float32},
          numbers};
}

struct Added {
  bool first;
  Bytes at;
  float number;  // the first of the piece
};

// One rank: sums are plain memory.
class RankOfReduction {
 public:
  RankOfReduction(const std::vector<size_t>& sizes, int rank, int ranks) {
    std::vector<ReducedParameter> parameters;
    for (size_t i = 0; i < sizes.size(); ++i) {
      auto shares = even_shares(sizes[i], sizeof(float), ranks);
      own_.push_back(shares[static_cast<size_t>(rank)]);
      parameters.push_back({"parameter " + std::to_string(i), std::move(shares), Element::float32});
    }
    reduction_ = std::make_unique<Reduction>(
        std::move(parameters),
        ReductionOptions{
            .rank = rank, .ranks = ranks, .piece_bytes = kPiece, .most_waiting = 1_GiB},
        ReductionHooks{
            .new_sum = [this](size_t parameter) -> Result<ReducedTensor> {
              if (fails_.load()) return Error{Code::no_memory, "no memory for a test"};
              return reduced(
                  std::make_shared<Numbers>(own_[parameter].bytes() / sizeof(float), -1.F));
            },
            .add =
                [this](const ReducedTensor& sum, bool first, Bytes at, std::span<std::byte> piece) {
                  add(sum, first, at, piece);
                  return Result<void>();
                }});
  }

  Reduction& operator*() { return *reduction_; }
  Reduction* operator->() { return reduction_.get(); }
  const Share& share(size_t parameter) const { return own_[parameter]; }
  void fail() { fails_.store(true); }
  std::vector<Added> added() {
    const std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  // Not divided by the number of ranks: whole numbers stay whole.
  void add(const ReducedTensor& sum, bool first, Bytes at, std::span<std::byte> piece) {
    Numbers numbers(piece.size() / sizeof(float));
    std::memcpy(numbers.data(), piece.data(), piece.size());
    auto& into = *static_cast<Numbers*>(sum.tensor.get());
    for (size_t i = 0; i < numbers.size(); ++i) {
      float& each = into[at / sizeof(float) + i];
      each = first ? numbers[i] : each + numbers[i];
    }
    const std::lock_guard lock(mutex_);
    all_.push_back({first, at, numbers[0]});
  }

  std::vector<Share> own_;
  std::atomic<bool> fails_{false};
  std::mutex mutex_;
  std::vector<Added> all_;
  std::unique_ptr<Reduction> reduction_;
};

struct Reductions {
  Reductions(int ranks, const std::vector<size_t>& sizes) : sizes(sizes) {
    for (int rank = 0; rank < ranks; ++rank) all.emplace_back(sizes, rank, ranks);
    exchanges = std::make_unique<Exchanges>(ranks, [this](int rank, ExchangeOptions& options) {
      options.on_notice = [this, rank](int from, const Notice& notice) {
        (*this)[rank]->on_notice(from, notice);
      };
    });
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_TRUE((*this)[rank]->start((*exchanges)[rank]).ok());
  }
  ~Reductions() {
    for (RankOfReduction& rank : all) rank->close();  // before the exchanges
  }
  int ranks() const { return static_cast<int>(all.size()); }
  RankOfReduction& operator[](int rank) { return all[static_cast<size_t>(rank)]; }

  void contribute(int rank, size_t parameter, float value) {
    auto numbers = std::make_shared<Numbers>(sizes[parameter], value);
    ASSERT_TRUE((*this)[rank]->contribute(parameter, reduced(std::move(numbers))).ok());
  }
  // Ends the round; the sums by parameter, each of which must be the same number throughout. NaN: none.
  std::vector<float> finish(int rank) {
    std::vector<float> sums;
    EXPECT_TRUE((*this)[rank]->end_round().ok());
    const Result<void> waited = (*this)[rank]->wait_for_rounds();
    EXPECT_TRUE(waited.ok()) << waited.error().message;
    for (const ReducedTensor& sum : (*this)[rank]->take()) {
      const auto* numbers = static_cast<const Numbers*>(sum.tensor.get());
      sums.push_back(numbers == nullptr || numbers->empty() ? NAN : (*numbers)[0]);
      for (size_t i = 0; numbers != nullptr && i < numbers->size(); ++i) {
        if ((*numbers)[i] != sums.back())
          ADD_FAILURE() << "number " << i << " is " << (*numbers)[i];
      }
    }
    return sums;
  }
  // The same body for each rank, in a thread of its own.
  void on_all(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks(); ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  const std::vector<size_t> sizes;
  std::deque<RankOfReduction> all;
  std::unique_ptr<Exchanges> exchanges;
};

TEST(Reduction, AParameterThatThereIsNotFailsItAndNamesTheRankThatSpokeOfIt) {
  for (const uint64_t parameter : {uint64_t{0}, uint64_t{3}, ~uint64_t{0}}) {
    RankOfReduction rank({}, 0, 3);
    rank->on_notice(2, encode(GradientReady{.parameter = parameter}));
    const std::optional<Error> failure = rank->failure();
    ASSERT_TRUE(failure) << parameter;
    EXPECT_NE(failure->message.find("rank 2 spoke of parameter " + std::to_string(parameter)),
              std::string::npos)
        << failure->message;
  }
}

// The second is so small that not every rank has a share of it, the last has several pieces.
const std::vector<size_t> kSizes = {5000, 1024, 3 * 2 * kPiece / sizeof(float) + 1024};

TEST(Reduction, EachRankHasTheSumsOfItsShares) {
  Reductions reductions(3, kSizes);
  reductions.on_all([&](int rank) {
    for (size_t i = 0; i < kSizes.size(); ++i)
      reductions.contribute(rank, i, static_cast<float>(1 + rank));
    const std::vector<float> sums = reductions.finish(rank);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      if (reductions[rank].share(i).bytes() > 0) {
        EXPECT_EQ(sums[i], 6.F) << i;
      }
    }
  });
}

TEST(Reduction, PartsAreAddedInTheOrderOfRanksFromTheOwnOneOn) {
  Reductions reductions(3, {6 * 1024});
  reductions.on_all([&](int rank) {
    reductions.contribute(rank, 0, static_cast<float>(10 + rank));
    reductions.finish(rank);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const std::vector<Added> added = reductions[rank].added();
    ASSERT_EQ(added.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(added[static_cast<size_t>(i)].first, i == 0);
      EXPECT_EQ(added[static_cast<size_t>(i)].number, static_cast<float>(10 + (rank + i) % 3));
    }
  }
}

// Ranks that take other ways through the model: nobody waits for what does not come.
TEST(Reduction, RanksThatContributeNothingArePassedOver) {
  Reductions reductions(3, {6 * 1024, 6 * 1024});
  reductions.on_all([&](int rank) {
    if (rank == 1) reductions.contribute(rank, 0, 5);
    const std::vector<float> sums = reductions.finish(rank);
    EXPECT_EQ(sums[0], 5.F);
    EXPECT_TRUE(std::isnan(sums[1]));
    EXPECT_TRUE(reductions[rank]->changed(0));
    EXPECT_FALSE(reductions[rank]->changed(1));
    reductions[rank]->forget_changes(0);
    EXPECT_FALSE(reductions[rank]->changed(0));
  });
}

// A parameter that is used twice in one pass, here by some more often than by others; many rounds, ranks ahead of each other.
TEST(Reduction, RandomContributionsOfManyRoundsAreAllInAndNoMore) {
  Random random(97);
  BOTTOMLESS_TRACE_SEED(random);
  constexpr int kRanks = 3;
  constexpr uint64_t kRounds = kSanitizer ? 30 : 100;
  const auto turns = [&](uint64_t round, int rank, size_t parameter) {
    return random.fork(round * 100 + static_cast<uint64_t>(rank) * 10 + parameter).below(4);
  };
  Reductions reductions(kRanks, kSizes);
  std::atomic<uint64_t> contributed{0};
  reductions.on_all([&](int rank) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < kSizes.size(); ++i) {
        for (uint64_t turn = 0; turn < turns(round, rank, i); ++turn, ++contributed)
          reductions.contribute(rank, i, static_cast<float>(1 + rank + 10 * turn));
      }
      const std::vector<float> sums = reductions.finish(rank);
      for (size_t i = 0; i < kSizes.size(); ++i) {
        float expected = 0;
        for (int other = 0; other < kRanks; ++other) {
          for (uint64_t turn = 0; turn < turns(round, other, i); ++turn)
            expected += static_cast<float>(1 + other + 10 * turn);
        }
        if (reductions[rank].share(i).bytes() == 0) continue;
        if (expected == 0) {
          EXPECT_TRUE(std::isnan(sums[i])) << "round " << round << ", parameter " << i;
        } else {
          EXPECT_EQ(sums[i], expected) << "round " << round << ", parameter " << i;
        }
      }
    }
  });
  EXPECT_GT(contributed.load(), kRounds);
}

TEST(Reduction, GradientsAreFreedWhenAllHaveHadTheirParts) {
  Reductions reductions(2, {5000});
  std::vector<std::weak_ptr<Numbers>> given(2);
  reductions.on_all([&](int rank) {
    auto numbers = std::make_shared<Numbers>(5000, 1.F);
    given[static_cast<size_t>(rank)] = numbers;
    ASSERT_TRUE(reductions[rank]->contribute(0, reduced(std::move(numbers))).ok());
    reductions.finish(rank);
  });
  // Whoever has had a part knows it before the rank that gave it does.
  for (int rank = 0; rank < 2; ++rank) {
    while (!given[static_cast<size_t>(rank)].expired()) {
      reductions[rank]->free_given();
      std::this_thread::yield();
    }
  }
}

TEST(Reduction, WhereThereIsNoMemoryForASumContributingFails) {
  Reductions reductions(2, {5000});
  reductions[0].fail();
  const Result<void> refused =
      reductions[0]->contribute(0, reduced(std::make_shared<Numbers>(5000, 1.F)));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::no_memory);
}

}  // namespace
}  // namespace bottomless
