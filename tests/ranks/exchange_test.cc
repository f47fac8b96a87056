#include "ranks/exchange.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "ranks/exchanges.h"

namespace bottomless {
namespace {

const Bytes kSizes[] = {0, 1, 7, 4095, 4096, 4097, kPiece - 1, kPiece, kPiece + 1, 3 * kPiece + 5};
const Bytes kOffsets[] = {0, 1, 4095, 4096, kPiece - 1, kPiece, 512_KiB - 3, 512_KiB};

void pulls_everything(Exchange& by, int from, uint64_t key, const std::vector<std::byte>& content) {
  for (const Bytes size : kSizes) {
    for (const Bytes offset : kOffsets) {
      std::vector<std::byte> into(size + 1, std::byte{0x77});
      const Result<void> pulled = by.pull_now(
          {.from = from, .key = key, .offset = offset, .into = {into.data(), size}, .what = "x"});
      ASSERT_TRUE(pulled.ok()) << pulled.error().message;
      ASSERT_EQ(std::memcmp(into.data(), content.data() + offset, size), 0)
          << size << ' ' << offset;
      ASSERT_EQ(into.back(), std::byte{0x77});
    }
  }
}

TEST(Exchange, PullsOfEveryAlignmentAndSizeFromPlainMemory) {
  const std::vector<std::byte> memory = pattern(800_KiB, 1);
  Exchanges ranks(2);
  ranks[1].offer(5, 0, plain(memory));
  pulls_everything(ranks[0], 1, 5, memory);
  ranks[0].offer(6, 0, plain(memory));
  pulls_everything(ranks[0], 0, 6, memory);
}

TEST(Exchange, PullsOfEveryAlignmentAndSizeFromTheStoreOfAnEngine) {
  Rig rig;
  constexpr Bytes kSize = 800_KiB;  // two blocks
  std::byte* at = rig.filled(kSize, 2);
  rig.push_out(at);
  rig.push_out(at + 512_KiB);
  {
    Exchanges ranks(2);
    const Bytes resident = rig.resident();
    ranks[1].offer(5, 0, {.engine = &rig.engine(), .address = at, .bytes = kSize});
    pulls_everything(ranks[0], 1, 5, pattern(kSize, 2));
    pulls_everything(ranks[1], 1, 5, pattern(kSize, 2));
    EXPECT_EQ(rig.resident(), resident) << "giving needs no room";
  }
  rig.free(at);
}

TEST(Exchange, WhatRanksAskForOneAfterTheOtherIsReadOnce) {
  Rig rig;
  constexpr Bytes kSize = 8 * kPiece;
  std::byte* at = rig.filled(kSize, 2);
  rig.push_out(at);
  {
    Exchanges ranks(2);
    ranks[1].offer(5, 0, {.engine = &rig.engine(), .address = at, .bytes = kSize});
    const Bytes before = rig.stats().read_bytes;
    std::vector<std::byte> into(kSize);
    for (const int asking : {1, 0})
      ASSERT_TRUE(ranks[asking].pull_now({.from = 1, .key = 5, .into = into}).ok());
    EXPECT_EQ(rig.stats().read_bytes - before, kSize);
  }
  rig.free(at);
}

TEST(Exchange, OffsetsCountInTheWholeNotInThePart) {
  const std::vector<std::byte> part = pattern(1000, 1);
  Exchanges ranks(2);
  ranks[1].offer(5, 0, plain(part, 4096));
  std::vector<std::byte> into(10);
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 5, .offset = 4100, .into = into}).ok());
  EXPECT_EQ(std::memcmp(into.data(), part.data() + 4, 10), 0);
  for (const Bytes offset : {Bytes{0}, Bytes{4095}, Bytes{4096 + 991}, Bytes{9000}}) {
    const Result<void> refused =
        ranks[0].pull_now({.from = 1, .key = 5, .offset = offset, .into = into, .what = "get 'w'"});
    EXPECT_TRUE(names(refused, "get 'w': rank 1: ")) << offset;
  }
  EXPECT_EQ(ranks[1].given(5), 10u) << "what was refused was not given";
}

TEST(Exchange, APullWaitsForAVersionThatIsNotOlder) {
  const std::vector<std::byte> old = pattern(1000, 1), fresh = pattern(1000, 2);
  Exchanges ranks(2);
  std::vector<std::byte> early(1000), later(1000), marker(1);
  auto before_any = start_pull(ranks[0], {.from = 1, .key = 5, .version = 3, .into = early});
  ranks[1].offer(5, 3, plain(old));
  ASSERT_TRUE(before_any.get().ok());
  EXPECT_EQ(early, old);
  auto newer = start_pull(ranks[0], {.from = 1, .key = 5, .version = 4, .into = later});
  // What was asked for later is answered: the other one waits, and is in nobody's way.
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 5, .version = 2, .into = marker}).ok());
  EXPECT_EQ(newer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  ranks[1].offer(5, 6, plain(fresh));
  ASSERT_TRUE(newer.get().ok());
  EXPECT_EQ(later, fresh);
}

// In which order pulls of one byte each were answered.
struct Order {
  std::mutex mutex;
  std::vector<int> answered;
  std::vector<std::byte> into = std::vector<std::byte>(16);

  uint64_t pull(Exchange& by, int number, Priority priority) {
    return by.pull({.from = 1,
                    .key = 5,
                    .into = std::span(into).subspan(static_cast<size_t>(number), 1),
                    .priority = priority,
                    .done = [this, number](const Result<void>&) {
                      std::lock_guard lock(mutex);
                      answered.push_back(number);
                    }});
  }
};

TEST(Exchange, WhatIsUrgentIsAnsweredBeforeWhatIsAskedForAhead) {
  const std::vector<std::byte> memory(16);
  Exchanges ranks(2);
  ranks[1].offer(9, 0, plain(memory));
  Order order;
  order.pull(ranks[0], 0, Priority::prefetch);
  order.pull(ranks[0], 1, Priority::prefetch);
  order.pull(ranks[0], 2, Priority::demand);
  const uint64_t third = order.pull(ranks[0], 3, Priority::prefetch);
  std::vector<std::byte> into(1);
  // Questions are said in order: when this one is answered, rank 1 has the others.
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 9, .into = into}).ok());
  ranks[0].raise_priority(third);
  ranks[0].raise_priority(third);
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 9, .into = into}).ok());
  ranks[1].offer(5, 0, plain(memory));
  ASSERT_TRUE(
      ranks[0].pull_now({.from = 1, .key = 5, .into = into, .priority = Priority::prefetch}).ok());
  std::lock_guard lock(order.mutex);
  EXPECT_EQ(order.answered, (std::vector<int>{2, 3, 0, 1}));
}

TEST(Exchange, NoticesComeInOrderBesidePulls) {
  constexpr uint64_t kNotices = 300;
  std::mutex mutex;
  std::vector<uint64_t> seen[3];
  const std::vector<std::byte> memory = pattern(3 * kPiece, 1);
  Exchanges ranks(3, [&](int rank, ExchangeOptions& options) {
    if (rank != 0) return;
    options.on_notice = [&](int from, const Notice& notice) {
      EXPECT_EQ(notice.what, 7u);
      EXPECT_EQ(notice.second, notice.first * 2);
      std::lock_guard lock(mutex);
      seen[from].push_back(notice.first);
    };
  });
  std::vector<std::thread> threads;
  for (const int rank : {1, 2}) {
    ranks[rank].offer(5, 0, plain(memory));
    threads.emplace_back([&, rank] {
      for (uint64_t i = 0; i < kNotices; ++i) EXPECT_TRUE(ranks[rank].tell(0, {7, i, 2 * i}).ok());
    });
    threads.emplace_back([&, rank] {
      std::vector<std::byte> into(memory.size());
      for (int i = 0; i < 20; ++i)
        EXPECT_TRUE(ranks[0].pull_now({.from = rank, .key = 5, .into = into}).ok());
    });
  }
  const auto count = [&](int rank) {
    std::lock_guard lock(mutex);
    return seen[rank].size();
  };
  const Result<void> waited = ranks[0].wait(
      "wait for all notices", [&] { return count(1) == kNotices && count(2) == kNotices; },
      [&] { return count(1) < kNotices ? 1 : 2; });
  EXPECT_TRUE(waited.ok());
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {1, 2}) {
    for (uint64_t i = 0; i < kNotices; ++i) ASSERT_EQ(seen[rank][i], i);
  }
}

TEST(Exchange, TellAllTellsAllButItself) {
  std::atomic<int> told[3] = {};
  Exchanges ranks(3, [&](int rank, ExchangeOptions& options) {
    options.on_notice = [&told, rank](int from, const Notice&) {
      EXPECT_EQ(from, 1);
      ++told[rank];
    };
  });
  ASSERT_TRUE(ranks[1].tell_all({}).ok());
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(ranks[rank]
                    .wait(
                        "", [&] { return told[rank] == 1; }, [] { return 1; })
                    .ok());
  }
  EXPECT_EQ(told[1], 0);
}

TEST(Exchange, GivenCountsWhatOfThisVersionWasGiven) {
  const std::vector<std::byte> memory = pattern(3 * kPiece, 1);
  Exchanges ranks(3);
  EXPECT_EQ(ranks[0].given(5), 0u);
  ranks[0].offer(5, 1, plain(memory));
  std::vector<std::byte> into(memory.size());
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(ranks[rank].pull_now({.from = 0, .key = 5, .into = into}).ok());
  }
  // The last piece may arrive before it is counted.
  EXPECT_TRUE(ranks[0]
                  .wait(
                      "", [&] { return ranks[0].given(5) == 3 * memory.size(); }, [] { return 1; })
                  .ok());
  ranks[0].offer(5, 2, plain(memory));
  EXPECT_EQ(ranks[0].given(5), 0u);
}

// A rank whose offered block can only be read when the test lets it.
struct SlowOwner {
  static constexpr Bytes kSize = 512_KiB;
  explicit SlowOwner(uint64_t key = 3) {
    at = rig.filled(kSize, key);
    rig.push_out(at);
    rig.engine().wait_for_io();
    rig.store().hold();
  }
  ~SlowOwner() { rig.free(at); }
  Offered offered() { return {.engine = &rig.engine(), .address = at, .bytes = kSize}; }

  Rig rig;
  std::byte* at;
};

TEST(Exchange, WithdrawWaitsForReadersAndLetsNoMoreBegin) {
  SlowOwner owner;
  Exchanges ranks(2);
  ranks[1].offer(5, 0, owner.offered());
  std::vector<std::byte> into(10);
  auto pulled = start_pull(ranks[0], {.from = 1, .key = 5, .into = into});
  owner.rig.store().wait_for_pending(1);
  std::atomic<bool> released{false};
  std::thread withdraws([&] {
    ranks[1].withdraw(5);
    EXPECT_TRUE(released);
  });
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  released = true;
  owner.rig.store().release();
  EXPECT_TRUE(pulled.get().ok());
  withdraws.join();
  EXPECT_EQ(ranks[1].given(5), 0u);
  auto waits = start_pull(ranks[0], {.from = 1, .key = 5, .into = into});
  const std::vector<std::byte> other = pattern(100, 9);
  ranks[1].offer(5, 0, plain(other));
  ASSERT_TRUE(waits.get().ok());
  EXPECT_EQ(std::memcmp(into.data(), other.data(), 10), 0) << "it was not of use any more";
  ranks[1].withdraw(5);
  ranks[1].withdraw(5);  // it is gone already
}

TEST(Exchange, WhatIsOfferedAnewDuringAnAnswerIsNotMistakenForWhatWasBefore) {
  SlowOwner owner(3);
  SlowOwner next(4);
  next.rig.store().release();
  Exchanges ranks(3);
  ranks[1].offer(5, 1, owner.offered());
  std::vector<std::byte> into(SlowOwner::kSize), other(SlowOwner::kSize);
  auto pulled = start_pull(ranks[0], {.from = 1, .key = 5, .version = 1, .into = into});
  owner.rig.store().wait_for_pending(1);
  ranks[1].offer(5, 2, next.offered());
  owner.rig.store().release();
  ASSERT_TRUE(pulled.get().ok());
  EXPECT_TRUE(has_pattern(into.data(), into.size(), 3));
  ASSERT_TRUE(ranks[2].pull_now({.from = 1, .key = 5, .version = 2, .into = other}).ok());
  EXPECT_TRUE(has_pattern(other.data(), other.size(), 4));
  EXPECT_TRUE(ranks[1]
                  .wait(
                      "", [&] { return ranks[1].given(5) == other.size(); }, [] { return 2; })
                  .ok())
      << "the first answer was not of this version";
}

TEST(Exchange, ARankThatWaitsForItsDiskToAnswerStillAsksAndIsTold) {
  SlowOwner owner;
  const std::vector<std::byte> memory = pattern(3 * kPiece, 1);
  Exchanges ranks(2);
  ranks[0].offer(5, 0, owner.offered());
  ranks[1].offer(5, 0, plain(memory));
  std::vector<std::byte> slow(10), into(memory.size());
  auto pulled = start_pull(ranks[1], {.from = 0, .key = 5, .into = slow});
  owner.rig.store().wait_for_pending(1);
  EXPECT_TRUE(ranks[0].pull_now({.from = 1, .key = 5, .into = into}).ok());
  EXPECT_EQ(into, memory);
  owner.rig.store().release();
  EXPECT_TRUE(pulled.get().ok());
}

TEST(Exchange, AFailureOfTheOwnersDiskNamesRankAndObject) {
  SlowOwner owner;
  owner.rig.store().release();
  Exchanges ranks(2);
  ranks[1].offer(5, 0, owner.offered());
  std::vector<std::byte> into(SlowOwner::kSize);
  for (const int by : {0, 1}) {
    owner.rig.store().fail(FailAt{.n = by == 0 ? 2u : 0u, .operation = Operation::read});
    const Result<void> failed =
        ranks[by].pull_now({.from = 1, .key = 5, .into = into, .what = "gather 'layer.weight'"});
    EXPECT_TRUE(names(failed, "gather 'layer.weight': rank 1: ")) << by;
    EXPECT_TRUE(names(failed, "injected failure")) << by;
    ranks[1].withdraw(5);  // and all that was read of it
    ranks[1].offer(5, 0, owner.offered());
  }
  owner.rig.store().fail(std::nullopt);
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = 5, .into = into}).ok());
  EXPECT_TRUE(has_pattern(into.data(), into.size(), 3));
}

TEST(Exchange, CountsPayloadByRole) {
  const std::vector<std::byte> memory = pattern(100'000, 1);
  Exchanges ranks(2);
  constexpr uint64_t kKey = uint64_t{3} << 56 | 5;
  ranks[1].offer(kKey, 0, plain(memory));
  std::vector<std::byte> into(memory.size());
  ASSERT_TRUE(ranks[0].pull_now({.from = 1, .key = kKey, .into = into}).ok());
  EXPECT_EQ(ranks[0].stats().received_bytes, memory.size());
  EXPECT_EQ(ranks[0].stats().received_by_role.at(3), memory.size());
  ranks[1].close();
  EXPECT_EQ(ranks[1].stats().sent_bytes, memory.size());
  EXPECT_GE(ranks.network.received_bytes(0), memory.size());
}

TEST(Exchange, QuantisedPullsGiveEveryRankTheSameNumbersForAQuarterOfTheBytes) {
  constexpr size_t kNumbers = 3 * kPiece / sizeof(float) + 1000;
  std::vector<float> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i)
    numbers[i] = static_cast<float>(static_cast<int>(i * 7919 % 2001) - 1000) / 1000;
  Exchanges ranks(3);
  ranks[1].offer(5, 0,
                 {.address = reinterpret_cast<const std::byte*>(numbers.data()),
                  .bytes = kNumbers * sizeof(float),
                  .element = Element::float32});
  std::vector<std::vector<float>> got(3, std::vector<float>(kNumbers));
  for (const int by : {0, 1, 2}) {
    // In two pulls that are cut elsewhere: at multiples of what shares a scale that is all the same.
    const size_t cut = static_cast<size_t>(by) * 256 * 50;
    const auto into = std::as_writable_bytes(std::span(got[static_cast<size_t>(by)]));
    for (const auto& [from, to] : {std::pair<size_t, size_t>{0, cut}, {cut, kNumbers}}) {
      const Result<void> pulled =
          ranks[by].pull_now({.from = 1,
                              .key = 5,
                              .offset = from * 4,
                              .into = into.subspan(from * 4, (to - from) * 4),
                              .format = Format::eight_bits,
                              .element = Element::float32});
      ASSERT_TRUE(pulled.ok()) << pulled.error().message;
    }
  }
  EXPECT_EQ(got[0], got[1]);
  EXPECT_EQ(got[0], got[2]);
  for (size_t i = 0; i < kNumbers; ++i) ASSERT_NEAR(got[0][i], numbers[i], 1.0 / 254 * 1.0001) << i;
  const Bytes least = encoded_bytes(kNumbers * sizeof(float), Element::float32);
  EXPECT_EQ(ranks[0].stats().received_bytes, least);
  EXPECT_LT(least, kNumbers * sizeof(float) * 26 / 100);
}

TEST(Exchange, ManyPullsFromManyThreadsAllArrive) {
  const std::vector<std::byte> memory = pattern(5 * kPiece + 123, 1);
  Exchanges ranks(4, [](int, auto&) {}, {.most_delay_us = 200});
  for (int i = 0; i < 4; ++i) ranks[i].offer(5, 0, plain(memory));
  std::vector<std::thread> threads;
  for (int by = 0; by < 4; ++by) {
    threads.emplace_back([&, by] {
      std::vector<std::vector<std::byte>> into(40, std::vector<std::byte>(memory.size()));
      std::vector<std::future<Result<void>>> pulls;
      for (int i = 0; i < 40; ++i)
        pulls.push_back(start_pull(
            ranks[by], {.from = (by + i) % 4,
                        .key = 5,
                        .into = into[static_cast<size_t>(i)],
                        .priority = i % 3 == 0 ? Priority::prefetch : Priority::demand}));
      for (size_t i = 0; i < pulls.size(); ++i) {
        EXPECT_TRUE(pulls[i].get().ok());
        EXPECT_EQ(into[i], memory);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace bottomless
