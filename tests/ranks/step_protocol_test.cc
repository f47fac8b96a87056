// Ranks of one process that begin steps, sum, follow and leave, without tensors.
#include "ranks/step_protocol.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "ranks/exchanges.h"

namespace bottomless {
namespace {

constexpr size_t kParameters = 3;

struct Ranks {
  explicit Ranks(int count) {
    for (int rank = 0; rank < count; ++rank) {
      reductions.push_back(std::make_unique<Reduction>(
          std::vector<ReducedParameter>(
              kParameters, {"p", even_shares(64, sizeof(float), count), Element::float32}),
          ReductionOptions{
              .rank = rank, .ranks = count, .piece_bytes = kPiece, .most_waiting = 1_GiB},
          ReductionHooks{}));
      protocols.push_back(
          std::make_unique<StepProtocol>(rank, count, kParameters, *reductions.back()));
    }
    exchanges = std::make_unique<Exchanges>(count, [this](int rank, ExchangeOptions& options) {
      options.on_notice = [this, rank](int from, const Notice& notice) {
        (*this)[rank].on_notice(from, notice);
      };
    });
    for (int rank = 0; rank < count; ++rank) {
      (*this)[rank].start((*exchanges)[rank]);
      EXPECT_TRUE(reductions[static_cast<size_t>(rank)]->start((*exchanges)[rank]).ok());
    }
  }
  ~Ranks() {
    for (const auto& each : reductions) each->close();  // before the exchanges
  }

  StepProtocol& operator[](int rank) { return *protocols[static_cast<size_t>(rank)]; }
  int count() const { return static_cast<int>(protocols.size()); }
  void on_all(const std::function<void(int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count(); ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::deque<std::unique_ptr<Reduction>> reductions;
  std::deque<std::unique_ptr<StepProtocol>> protocols;
  std::unique_ptr<Exchanges> exchanges;
};

TEST(ShardProtocol, WhatIsEncodedIsDecoded) {
  const auto again = [](const ShardNotice& notice) { return decode(encode(notice)); };
  const auto ready = std::get<GradientReady>(again(GradientReady{7, 5, 3}));
  EXPECT_EQ(ready.parameter, 7u);
  EXPECT_EQ(ready.round, 5u);
  EXPECT_EQ(ready.turn, 3u);
  EXPECT_EQ(std::get<RoundEnds>(again(RoundEnds{9})).round, 9u);
  for (const bool follows : {false, true}) {
    const auto begins = std::get<StepBegins>(again(StepBegins{4, 6, follows}));
    EXPECT_EQ(begins.step, 4u);
    EXPECT_EQ(begins.rounds, 6u);
    EXPECT_EQ(begins.follows, follows);
  }
  EXPECT_EQ(std::get<ParameterWritten>(again(ParameterWritten{1, 2})).step, 2u);
  EXPECT_EQ(std::get<SumAsked>(again(SumAsked{8})).number, 8u);
  EXPECT_TRUE(std::holds_alternative<Leaving>(again(Leaving{})));
  EXPECT_TRUE(std::holds_alternative<Left>(again(Left{})));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(decode({.what = 99})));
}

TEST(StepProtocol, AllRanksBeginAStepTogether) {
  Ranks ranks(3);
  std::atomic<int> begun{0};
  ranks.on_all([&](int rank) {
    for (uint64_t step = 1; step <= 20; ++step) {
      begun.fetch_add(1);
      ASSERT_TRUE(ranks[rank].begin(step, false, 0).ok());
      EXPECT_GE(begun.load(), static_cast<int>(3 * step)) << "somebody had not";
      EXPECT_EQ(ranks[rank].guide(step), std::nullopt);
    }
  });
}

TEST(StepProtocol, WhatIsWrittenBeforeAStepIsKnownInItAndNotEarlier) {
  Ranks ranks(2);
  ranks.on_all([&](int rank) {
    for (uint64_t step = 1; step <= 10; ++step) {
      const size_t written = step % kParameters;
      if (rank == 0) {
        ASSERT_TRUE(ranks[0].tell_written(written, step).ok());
      }
      ASSERT_TRUE(ranks[rank].begin(step, false, 0).ok());
      const std::vector<size_t> expected =
          rank == 1 ? std::vector<size_t>{written} : std::vector<size_t>{};
      EXPECT_EQ(ranks[rank].take_written(step), expected) << step;
    }
  });
}

TEST(StepProtocol, AParameterThatThereIsNotFailsTheReduction) {
  Ranks ranks(2);
  ranks[0].on_notice(1, encode(ParameterWritten{.parameter = kParameters, .step = 1}));
  const std::optional<Error> failure = ranks.reductions[0]->failure();
  ASSERT_TRUE(failure);
  EXPECT_NE(failure->message.find("rank 1"), std::string::npos) << failure->message;
}

TEST(StepProtocol, ARankThatSumsBeforeAStepThatAnotherHasBegunIsAnError) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks[1].tell_sum(1).ok());
  const Result<void> begun = ranks[0].begin(1, false, 0);
  ASSERT_FALSE(begun.ok());
  EXPECT_EQ(begun.error().code, Code::invalid_argument);
  EXPECT_NE(begun.error().message.find("rank 1 has asked"), std::string::npos);
}

TEST(StepProtocol, ARankThatIsDoneFollowsOthersUntilAllAre) {
  Ranks ranks(2);
  std::latch summed(1);  // nobody has a sum before all have taken part
  ranks.on_all([&](int rank) {
    if (rank == 0) {
      ASSERT_TRUE(ranks[0].begin(1, false, 0).ok());
      EXPECT_EQ(ranks[0].guide(1), 0);
      ASSERT_TRUE(ranks[0].tell_sum(1).ok());
      summed.wait();
      EXPECT_EQ(ranks[0].await_others(2, 1).value(), StepProtocol::Others::are_done);
    } else {
      EXPECT_EQ(ranks[1].await_others(1, 0).value(), StepProtocol::Others::step);
      ASSERT_TRUE(ranks[1].begin(1, true, 0).ok());
      EXPECT_EQ(ranks[1].guide(1), 0);
      EXPECT_EQ(ranks[1].await_others(2, 0).value(), StepProtocol::Others::sum);
      summed.count_down();
      EXPECT_EQ(ranks[1].await_others(2, 1).value(), StepProtocol::Others::are_done);
    }
    EXPECT_TRUE(ranks[rank].leave().ok());
  });
}

TEST(StepProtocol, ARankThatIsDoneTakesPartInARound) {
  Ranks ranks(2);
  ranks.on_all([&](int rank) {
    Reduction& reduction = *ranks.reductions[static_cast<size_t>(rank)];
    if (rank == 1) {
      EXPECT_EQ(ranks[1].await_others(1, 0).value(), StepProtocol::Others::reduce);
    }
    ASSERT_TRUE(reduction.end_round().ok());
    ASSERT_TRUE(reduction.wait_for_rounds().ok());
    EXPECT_TRUE(ranks[rank].leave().ok());
  });
}

TEST(StepProtocol, TheMostRoundsOfAnyRankCount) {
  Ranks ranks(2);
  ASSERT_TRUE(ranks.reductions[1]->end_round().ok());
  ASSERT_TRUE(ranks.reductions[1]->end_round().ok());
  ranks.on_all([&](int rank) { ASSERT_TRUE(ranks[rank].begin(1, false, 0).ok()); });
  EXPECT_EQ(ranks[0].most_rounds(), 2u);
}

}  // namespace
}  // namespace bottomless
