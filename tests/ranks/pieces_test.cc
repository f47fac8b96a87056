#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "engine/rig.h"
#include "ranks/piece_cache.h"

namespace bottomless {
namespace {

constexpr Bytes kPiece = 96_KiB;  // does not divide a block
constexpr Bytes kSize = 800_KiB;  // two blocks

struct Offering {
  Offering() {
    at = rig.filled(kSize, 3);
    rig.push_out(at);
    rig.push_out(at + 512_KiB);
    rig.engine().wait_for_io();
  }
  ~Offering() { rig.free(at); }
  Result<PieceCache::Piece> get(PieceCache& cache, size_t index, uint64_t version = 1,
                                int askers = 1) {
    const Bytes offset = index * kPiece;
    return cache.get({.key = 5, .version = version, .offset = offset}, rig.engine(), at + offset,
                     std::min(kPiece, kSize - offset), askers);
  }
  bool right(const Result<PieceCache::Piece>& piece, size_t index) {
    if (!piece.ok()) return false;
    const std::span<std::byte> bytes = piece.value().bytes();
    return bytes.size() == std::min(kPiece, kSize - index * kPiece) &&
           continues_pattern(bytes.data(), bytes.size(), 3, index * kPiece);
  }

  Rig rig;
  std::byte* at;
};

TEST(Pieces, AreReadAcrossBlocksWhetherHereOrAway) {
  Offering offering;
  for (const bool here : {false, true}) {
    PieceCache cache(kPiece);
    ASSERT_TRUE(cache.reserve(2).ok());
    EXPECT_TRUE(!here || offering.rig.holds(offering.at, kSize, 3));
    for (size_t i = 0; i * kPiece < kSize; ++i) {
      const Result<PieceCache::Piece> piece = offering.get(cache, i);
      EXPECT_TRUE(offering.right(piece, i)) << i << ' ' << here;
    }
  }
}

TEST(Pieces, AreReadOnceForAllWhoAskMeanwhile) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(4).ok());
  const Bytes before = offering.rig.stats().read_bytes;
  offering.rig.store().hold();
  std::atomic<int> asking{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++asking;
      EXPECT_TRUE(offering.right(offering.get(cache, 1), 1));
    });
  }
  while (asking < 4) std::this_thread::yield();
  offering.rig.store().release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(offering.right(offering.get(cache, 1), 1)) << "it is still there";
  EXPECT_EQ(offering.rig.stats().read_bytes - before, kPiece);
}

TEST(Pieces, AnotherVersionIsReadAnew) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(4).ok());
  EXPECT_TRUE(offering.right(offering.get(cache, 0, 1), 0));
  const Bytes before = offering.rig.stats().read_bytes;
  EXPECT_TRUE(offering.right(offering.get(cache, 0, 2), 0));
  EXPECT_EQ(offering.rig.stats().read_bytes - before, kPiece);
}

TEST(Pieces, WhatIsForgottenIsReadAnew) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(4).ok());
  EXPECT_TRUE(offering.right(offering.get(cache, 0), 0));
  cache.forget(4);  // another one
  const Bytes before = offering.rig.stats().read_bytes;
  EXPECT_TRUE(offering.right(offering.get(cache, 0), 0));
  EXPECT_EQ(offering.rig.stats().read_bytes, before);
  cache.forget(5);
  EXPECT_TRUE(offering.right(offering.get(cache, 0), 0));
  EXPECT_EQ(offering.rig.stats().read_bytes - before, kPiece);
}

TEST(Pieces, TheOneUnusedForLongestMakesRoom) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(2).ok());
  for (const size_t i : {0, 1, 0, 2}) EXPECT_TRUE(offering.right(offering.get(cache, i), i));
  const Bytes before = offering.rig.stats().read_bytes;
  EXPECT_TRUE(offering.right(offering.get(cache, 0), 0));
  EXPECT_EQ(offering.rig.stats().read_bytes, before);
  EXPECT_TRUE(offering.right(offering.get(cache, 1), 1));
  EXPECT_EQ(offering.rig.stats().read_bytes - before, kPiece);
}

TEST(Pieces, TheOneThatAllHaveHadMakesRoomFirst) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(2).ok());
  EXPECT_TRUE(offering.right(offering.get(cache, 0, 1, 2), 0));
  EXPECT_TRUE(offering.right(offering.get(cache, 1, 1, 2), 1));
  EXPECT_TRUE(offering.right(offering.get(cache, 1, 1, 2), 1)) << "the second one who asks";
  EXPECT_TRUE(offering.right(offering.get(cache, 2, 1, 2), 2));
  const Bytes before = offering.rig.stats().read_bytes;
  EXPECT_TRUE(offering.right(offering.get(cache, 0, 1, 2), 0)) << "used longest ago, but awaited";
  EXPECT_EQ(offering.rig.stats().read_bytes, before);
}

TEST(Pieces, WhoFindsAllInUseWaitsForOne) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(1).ok());
  std::optional<PieceCache::Piece> held(offering.get(cache, 0).value());
  std::atomic<bool> released{false};
  std::thread waits([&] {
    const Result<PieceCache::Piece> piece = offering.get(cache, 1);
    EXPECT_TRUE(released);
    EXPECT_TRUE(offering.right(piece, 1));
  });
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  released = true;
  held.reset();
  waits.join();
}

TEST(Pieces, AFailureIsThatOfAllWhoWaitedAndTheNextOneTriesAgain) {
  Offering offering;
  PieceCache cache(kPiece);
  ASSERT_TRUE(cache.reserve(2).ok());
  offering.rig.store().fail(FailAt{.operation = Operation::read, .from_then_on = true});
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const Result<PieceCache::Piece> piece = offering.get(cache, 1);
      ASSERT_FALSE(piece.ok());
      EXPECT_NE(piece.error().message.find("injected"), std::string::npos);
    });
  }
  for (std::thread& thread : threads) thread.join();
  offering.rig.store().fail(std::nullopt);
  EXPECT_TRUE(offering.right(offering.get(cache, 1), 1));
}

}  // namespace
}  // namespace bottomless
