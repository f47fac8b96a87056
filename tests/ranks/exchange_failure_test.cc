// Ranks that die, hang, leave or are late.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "ranks/exchanges.h"

namespace bottomless {
namespace {

constexpr Bytes kSize = 3 * kPiece + 5;

// A block that can only be read when the test lets it.
struct HeldBlock {
  HeldBlock() {
    at = rig.filled(512_KiB, 3);
    rig.push_out(at);
    rig.engine().wait_for_io();
    rig.store().hold();
  }
  ~HeldBlock() { rig.free(at); }
  Offered offered() { return {.engine = &rig.engine(), .address = at, .bytes = 512_KiB}; }

  Rig rig;
  std::byte* at;
};

TEST(ExchangeFailure, APeerThatDiesAtAnySendEndsEveryWaitAndIsNamed) {
  const std::vector<std::byte> memory = pattern(kSize, 1);
  bool fired = true;
  for (uint64_t n = 0; fired; ++n) {
    std::atomic<int> notices{0};
    Exchanges ranks(3, [&](int rank, ExchangeOptions& options) {
      if (rank == 0) options.on_notice = [&](int, const Notice&) { ++notices; };
    });
    ranks.network.kill_after(1, n);
    ranks[1].offer(5, 0, plain(memory));
    ranks[0].offer(5, 0, plain(memory));
    std::vector<std::byte> first(kSize), second(kSize), back(kSize), never(1);
    auto one = start_pull(ranks[0], {.from = 1, .key = 5, .into = first, .what = "get 'w'"});
    auto two = start_pull(ranks[0], {.from = 1, .key = 5, .into = second, .what = "get 'w'"});
    auto reverse = start_pull(ranks[1], {.from = 0, .key = 5, .into = back, .what = "get 'v'"});
    (void)ranks[1].tell(0, {});
    const Result<void> waited = ranks[0].wait(
        "wait for a word", [&] { return notices > 0; }, [] { return 1; });
    const Result<void> outcomes[] = {one.get(), two.get()};
    fired = ranks.network.killed(1);
    auto unmet = start_pull(ranks[0], {.from = 1, .key = 6, .into = never, .what = "get 'u'"});
    if (!fired) ranks.network.kill(1);
    EXPECT_TRUE(names(unmet.get(), "get 'u': rank 1 has ended")) << n;
    for (const Result<void>& outcome : outcomes) {
      if (!outcome.ok()) {
        EXPECT_TRUE(fired && names(outcome, "get 'w': rank 1 has ended"))
            << outcome.error().message;
      }
    }
    if (!waited.ok()) {
      EXPECT_TRUE(names(waited, "wait for a word: rank 1 has ended")) << waited.error().message;
    }
    EXPECT_TRUE(names(ranks[0].tell_all({}), "rank 1 has ended"));
    const Result<void> of_dead = reverse.get();
    EXPECT_TRUE(of_dead.ok() || names(of_dead, "get 'v'")) << n;
    // The other one is not lost.
    ASSERT_TRUE(ranks[2].pull_now({.from = 0, .key = 5, .into = back}).ok());
    ASSERT_LT(n, 100u);
  }
}

TEST(ExchangeFailure, AnAnswerThatIsLateNamesWhoAndWhatAndWhatItIsDoing) {
  std::atomic<int> asked{0};
  Exchanges ranks(3, [&](int rank, ExchangeOptions& options) {
    options.phase = [&asked, rank] {
      asked += rank == 1;
      return "thought " + std::to_string(rank);
    };
  });
  std::vector<std::byte> into(1);
  std::vector<std::future<Result<void>>> pulls;
  for (int i = 0; i < 50; ++i)
    pulls.push_back(start_pull(ranks[0], {.from = 1, .key = 5, .into = into, .what = "get 'w'"}));
  ranks.wait_for_io(0, 1);
  ranks.clock(0).advance(kDeadline);
  for (auto& pull : pulls) {
    const Result<void> late = pull.get();
    EXPECT_TRUE(names(late, "get 'w': no answer from rank 1 for 200 ms"));
    EXPECT_TRUE(names(late, "it is at: thought 1; rank 0 is at: thought 0"));
  }
  EXPECT_EQ(asked, 1) << "however many there are, each rank is asked once";
  const std::vector<std::byte> memory(1);
  ranks[1].offer(6, 0, plain(memory));
  EXPECT_TRUE(ranks[0].pull_now({.from = 1, .key = 6, .into = into}).ok()) << "it is not lost";
}

TEST(ExchangeFailure, AWaitThatIsLateNamesWhoAndWhatAndWhatItIsDoing) {
  Exchanges ranks(2, with_thoughts);
  ranks.clock(0).advance_at_next_wait(kDeadline);
  const Result<void> late = ranks[0].wait(
      "wait for the end of step 3", [] { return false; }, [] { return 1; });
  EXPECT_TRUE(names(late, "wait for the end of step 3: nothing from rank 1 for 200 ms"));
  EXPECT_TRUE(names(late, "it is at: thought 1; rank 0 is at: thought 0"));
}

TEST(ExchangeFailure, ARankThatIsBusyReadingStillSaysWhatItIsDoing) {
  HeldBlock block;
  Exchanges ranks(2, with_thoughts);
  ranks[1].offer(5, 0, block.offered());
  std::vector<std::byte> into(512_KiB), again(512_KiB);
  auto late = start_pull(ranks[0], {.from = 1, .key = 5, .into = into, .what = "get 'w'"});
  block.rig.store().wait_for_pending(1);
  ASSERT_TRUE(ranks[0].tell(1, {}).ok());  // so that the question is not being sent any more
  ranks.clock(0).advance(kDeadline);
  EXPECT_TRUE(names(late.get(), "it is at: thought 1;"));
  // What comes in spite of that is of no use to anybody, and in nobody's way.
  std::fill(into.begin(), into.end(), std::byte{0x55});
  block.rig.store().release();
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 5, .into = again}).ok());
  EXPECT_TRUE(has_pattern(again.data(), again.size(), 3));
  EXPECT_EQ(into, std::vector<std::byte>(512_KiB, std::byte{0x55}));
}

TEST(ExchangeFailure, APullOfThisRankItselfThatIsLateIsNotWrittenTo) {
  HeldBlock block;
  std::vector<std::byte> into(512_KiB), again(512_KiB);
  {
    Exchanges ranks(1, with_thoughts);
    ranks[0].offer(5, 0, block.offered());
    auto late = start_pull(ranks[0], {.from = 0, .key = 5, .into = into, .what = "get 'w'"});
    block.rig.store().wait_for_pending(1);
    ranks.clock(0).advance(kDeadline);
    EXPECT_TRUE(names(late.get(), "get 'w': no answer from rank 0"));
    std::fill(into.begin(), into.end(), std::byte{0x55});
    block.rig.store().release();
    ASSERT_TRUE(ranks[0].pull_now({.from = 0, .key = 5, .into = again}).ok());
  }
  EXPECT_EQ(into, std::vector<std::byte>(512_KiB, std::byte{0x55}));
}

TEST(ExchangeFailure, APeerThatHangsAtAnySendIsNamedWhenTheDeadlineHasPassed) {
  const std::vector<std::byte> memory = pattern(kSize, 1);
  bool fired = true;
  for (uint64_t n = 0; fired; ++n) {
    Exchanges ranks(2, with_thoughts);
    VirtualClock& clock = ranks.clock(0);
    clock.on_wait([&] {
      if (ranks.network.stopped(1)) clock.advance(kDeadline);
    });
    ranks.network.stop_after(1, n);  // some of these are between the header and the body of a piece
    ranks[1].offer(5, 0, plain(memory));
    std::vector<std::byte> into(kSize);
    const Result<void> pulled =
        ranks[0].pull_now({.from = 1, .key = 5, .into = into, .what = "get 'w'"});
    fired = ranks.network.stopped(1);
    if (pulled.ok()) {
      EXPECT_EQ(into, memory);
    } else {
      EXPECT_TRUE(fired && names(pulled, "get 'w': ") && names(pulled, "rank 1"))
          << pulled.error().message;
      EXPECT_TRUE(names(pulled, "the deadline")) << pulled.error().message;
      std::fill(into.begin(), into.end(), std::byte{0x55});
    }
    int waits = 0;
    clock.on_wait([&, closing = std::this_thread::get_id()] {
      if (!ranks.network.stopped(1) || std::this_thread::get_id() != closing) return;
      ++waits;
      clock.advance(kDeadline);
    });
    ranks[0].close();
    EXPECT_LE(waits, 1) << "for a stopped rank it waits until the deadline, and no longer";
    if (!pulled.ok()) {
      EXPECT_EQ(into, std::vector<std::byte>(kSize, std::byte{0x55}));
    }
    ranks.let_time_pass();
    ASSERT_LT(n, 100u);
  }
}

TEST(ExchangeFailure, WhoTellsAStoppedRankHearsOfItAtTheDeadline) {
  Exchanges ranks(3, with_thoughts);
  ranks.network.stop(1);
  ranks.let_time_pass(0);
  const Result<void> told = ranks[0].tell(1, {});
  EXPECT_TRUE(names(told, "rank 1 did not move for 200 ms (the deadline)")) << told.error().message;
  ranks.clock(0).on_wait([] {});  // from here on nobody else is late
  // Whom it cannot reach any more because of that is not blamed.
  EXPECT_TRUE(names(ranks[0].tell(2, {}), "rank 1 did not move"));
  const Result<void> waited = ranks[0].wait(
      "wait", [] { return false; }, [] { return 2; });
  EXPECT_TRUE(names(waited, "rank 1 did not move")) << waited.error().message;
  ranks.let_time_pass();
}

TEST(ExchangeFailure, WithdrawEndsWhenAReaderIsStopped) {
  const std::vector<std::byte> memory = pattern(kSize, 1);
  Exchanges ranks(2, with_thoughts);
  std::vector<std::byte> into(kSize);
  auto pulled = start_pull(ranks[1], {.from = 0, .key = 5, .into = into});
  ranks.wait_for_io(1, 0);
  ranks.network.stop(1);
  ranks[0].offer(5, 0, plain(memory));
  ranks.network.wait_until_a_send_hangs();
  ranks.let_time_pass();
  ranks[0].withdraw(5);
  ranks[1].close();
  EXPECT_FALSE(pulled.get().ok());
}

TEST(ExchangeFailure, CloseFailsThePullsUnderWayAndThoseAfterIt) {
  HeldBlock block;
  Exchanges ranks(2);
  ranks[0].offer(5, 0, block.offered());
  std::vector<std::byte> into(512_KiB), other(1);
  auto unmet = start_pull(ranks[0], {.from = 1, .key = 5, .into = other, .what = "get 'w'"});
  auto of_itself = start_pull(ranks[0], {.from = 0, .key = 9, .into = other, .what = "get 'w'"});
  auto reading = start_pull(ranks[0], {.from = 0, .key = 5, .into = into});
  auto asked = start_pull(ranks[1], {.from = 0, .key = 9, .into = other, .what = "get 'v'"});
  block.rig.store().wait_for_pending(1);
  std::thread closes([&] { ranks[0].close(); });
  EXPECT_TRUE(names(ranks[0].wait(
                        "wait", [] { return false; }, [] { return 1; }),
                    "wait: this rank has left the others"));
  block.rig.store().release();
  closes.join();
  EXPECT_TRUE(names(unmet.get(), "get 'w': this rank has left the others"));
  EXPECT_TRUE(names(of_itself.get(), "get 'w': this rank has left the others"));
  EXPECT_TRUE(reading.get().ok()) << "what is being given is given";
  EXPECT_TRUE(names(asked.get(), "get 'v': rank 0 has left"));
  for (const int from : {0, 1}) {
    EXPECT_TRUE(names(ranks[0].pull_now({.from = from, .key = 5, .into = other, .what = "late"}),
                      "late: this rank has left the others"));
  }
  EXPECT_FALSE(ranks[0].tell(1, {}).ok());
  ranks[0].close();
}

TEST(ExchangeFailure, CloseWhileOthersPullNeitherHangsNorHarmsThem) {
  const std::vector<std::byte> memory = pattern(kSize, 1);
  for (int round = 0; round < 20; ++round) {
    Exchanges ranks(3, [](int, auto&) {},
                    {.most_delay_us = 100, .seed = static_cast<uint64_t>(round)});
    for (int i = 0; i < 3; ++i) ranks[i].offer(5, 0, plain(memory));
    std::atomic<int> pulls{0};
    std::vector<std::thread> threads;
    for (const int by : {0, 2}) {
      threads.emplace_back([&, by] {
        std::vector<std::byte> into(kSize);
        for (;;) {
          const Result<void> pulled =
              ranks[by].pull_now({.from = 1, .key = 5, .into = into, .what = "get 'w'"});
          if (!pulled.ok()) {
            EXPECT_TRUE(names(pulled, "get 'w': rank 1 has left")) << pulled.error().message;
            break;
          }
          EXPECT_EQ(into, memory);
          ++pulls;
          pulls.notify_one();
        }
        EXPECT_TRUE(ranks[by].pull_now({.from = 2 - by, .key = 5, .into = into}).ok());
      });
    }
    threads.emplace_back([&] {
      std::vector<std::byte> into(kSize);
      while (ranks[1].pull_now({.from = 0, .key = 5, .into = into}).ok()) {
      }
    });
    for (int now = pulls; now < round; now = pulls) pulls.wait(now);
    ranks[1].close();  // with its clock stopped it does not end if it waits for somebody's program
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(ExchangeFailure, AllMayCloseAtOnce) {
  const std::vector<std::byte> memory = pattern(kSize, 1);
  for (int round = 0; round < 20; ++round) {
    Exchanges ranks(4, [](int, auto&) {},
                    {.most_delay_us = 50, .seed = static_cast<uint64_t>(round)});
    std::vector<std::vector<std::byte>> into(4, std::vector<std::byte>(kSize));
    std::vector<std::thread> threads;
    std::vector<std::future<Result<void>>> pulls;
    for (int i = 0; i < 4; ++i) ranks[i].offer(5, 0, plain(memory));
    for (int i = 0; i < 4; ++i)
      pulls.push_back(start_pull(ranks[i], {.from = (i + 1) % 4, .key = 5, .into = into[i]}));
    for (int i = 0; i < 4; ++i) threads.emplace_back([&, i] { ranks[i].close(); });
    for (std::thread& thread : threads) thread.join();  // unless they wait for each other
    for (auto& pull : pulls) (void)pull.get();
  }
}

TEST(ExchangeFailure, WhoWaitsForARankThatHasLeftIsTold) {
  std::atomic<int> notices{0};
  Exchanges ranks(3, [&](int rank, ExchangeOptions& options) {
    if (rank == 0) options.on_notice = [&](int, const Notice&) { ++notices; };
  });
  ASSERT_TRUE(ranks[1].tell(0, {}).ok());
  ranks[1].close();
  const auto late = [] { return 1; };
  EXPECT_TRUE(ranks[0]
                  .wait(
                      "wait", [&] { return notices == 1; }, late)
                  .ok());
  EXPECT_TRUE(names(ranks[0].wait(
                        "wait", [&] { return notices == 2; }, late),
                    "wait: rank 1 has left"));
  std::thread tells([&] { EXPECT_TRUE(ranks[2].tell(0, {}).ok()); });
  EXPECT_TRUE(ranks[0]
                  .wait(
                      "wait", [&] { return notices == 2; }, [] { return 2; })
                  .ok())
      << "others are waited for as before";
  tells.join();
}

TEST(ExchangeFailure, WhatARankIsDoingMayTakeLocks) {
  std::mutex mutex;
  Exchanges ranks(2, [&](int, ExchangeOptions& options) {
    options.phase = [&] {
      std::lock_guard lock(mutex);
      return std::string();  // of no words
    };
  });
  const std::vector<std::byte> memory(1);
  std::atomic<bool> done{false};
  std::thread offers([&] {
    while (!done) {
      std::lock_guard lock(mutex);
      ranks[0].offer(6, 0, plain(memory));
    }
  });
  std::vector<std::byte> into(1);
  auto late = start_pull(ranks[0], {.from = 1, .key = 5, .into = into});
  ranks.wait_for_io(0, 1);
  ranks.clock(0).advance(kDeadline);
  EXPECT_TRUE(names(late.get(), "no answer"));
  ranks[1].offer(6, 0, plain(memory));
  EXPECT_TRUE(ranks[0].pull_now({.from = 1, .key = 6, .into = into}).ok());
  ranks.network.kill(1);
  EXPECT_FALSE(ranks[0].pull_now({.from = 1, .key = 5, .into = into}).ok());
  done = true;
  offers.join();
}

}  // namespace
}  // namespace bottomless
