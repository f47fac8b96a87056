// What goes wrong and what must be left: too small a limit, a full store, broken transfers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;

bool mentions(const Error& error, std::string_view text) {
  return error.message.find(text) != std::string::npos;
}

// "... raise it to at least 4 MiB": the limit that the message recommends.
Bytes recommended(const Error& error) {
  const std::string marker = "raise it to at least ";
  const size_t at = error.message.find(marker);
  if (at == std::string::npos) return 0;
  const Result<Bytes> bytes = parse_bytes(error.message.substr(at + marker.size()));
  return bytes.ok() ? bytes.value() : 0;
}

TEST(TooSmall, APinNamesTheOperatorTheBytesAndTheLimit) {
  Rig rig;
  std::byte* at = rig.allocate(5 * kBlock);
  Pins pins(rig.engine());
  const Result<void> pinned = rig.try_pin(pins, at, 5 * kBlock, Access::write, "aten::mm");
  ASSERT_FALSE(pinned.ok());
  EXPECT_EQ(pinned.error().code, Code::no_memory);
  EXPECT_TRUE(mentions(pinned.error(), "aten::mm")) << pinned.error().message;
  EXPECT_TRUE(mentions(pinned.error(), "needs 2.50 MiB")) << pinned.error().message;
  EXPECT_TRUE(mentions(pinned.error(), "limit is 2 MiB")) << pinned.error().message;
  EXPECT_TRUE(mentions(pinned.error(), "--memory")) << pinned.error().message;
  EXPECT_TRUE(pins.empty()) << "on an error nothing is added";
}

TEST(TooSmall, AnAllocationNamesTheOperatorTheBytesAndTheLimit) {
  Rig rig;
  Pins pins(rig.engine());
  std::byte* input = rig.allocate_pinned(kBlock, pins);
  write_pattern(input, kBlock, 1);
  const Result<void*> at = rig.engine().allocate(4 * kBlock, Kind::other, &pins, "aten::add");
  ASSERT_FALSE(at.ok());
  EXPECT_EQ(at.error().code, Code::no_memory);
  EXPECT_TRUE(mentions(at.error(), "aten::add")) << at.error().message;
  EXPECT_TRUE(mentions(at.error(), "needs 2.50 MiB")) << at.error().message;
  EXPECT_TRUE(has_pattern(input, kBlock, 1)) << "what was pinned before stays pinned";
  EXPECT_EQ(rig.engine().live_storages(), 1u);
  rig.allocate_pinned(2 * kBlock, pins);
}

TEST(TooSmall, TheRecommendedLimitIsEnough) {
  for (const bool allocate : {false, true}) {
    SCOPED_TRACE(allocate ? "allocate" : "pin");
    Bytes limit = 2_MiB;
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 2) << "the recommendation was not enough";
      Rig rig({.limit = limit});
      std::byte* at = rig.allocate(2 * kBlock);
      Pins pins(rig.engine());
      rig.pin(pins, at, kBlock, Access::write);
      Result<void> outcome;
      if (allocate) {
        Result<void*> made = rig.engine().allocate(6 * kBlock, Kind::other, &pins, "a test");
        if (!made.ok()) outcome = std::move(made).error();
      } else {
        std::byte* more = rig.allocate(6 * kBlock);
        outcome = rig.try_pin(pins, more, 6 * kBlock, Access::write);
      }
      if (outcome.ok()) break;
      limit = recommended(outcome.error());
      ASSERT_GT(limit, 2_MiB) << outcome.error().message;
      ASSERT_LE(limit, 4_MiB + 256_KiB)
          << "asks for more than is needed: " << outcome.error().message;
    }
  }
}

TEST(TooSmall, NothingIsLostAndSmallerThingsStillWork) {
  Rig rig;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 5; ++i) storages.push_back(rig.filled(kBlock, i));
  std::byte* large = rig.allocate(5 * kBlock);
  for (int round = 0; round < 3; ++round) {
    Pins pins(rig.engine());
    EXPECT_FALSE(rig.try_pin(pins, large, 5 * kBlock, Access::read).ok());
    EXPECT_FALSE(rig.engine().allocate(5 * kBlock, Kind::other, &pins, "a test").ok());
    for (uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i));
  }
}

TEST(TooSmall, ALimitBelowTheOverheadIsAnErrorNotAHang) {
  MemoryStore store;
  const auto engine =
      make_engine({.limit = 64_KiB, .frames = {.large = 64_KiB, .small = 64_KiB}}, store);
  Pins pins(*engine);
  const Result<void*> at = engine->allocate(4_KiB, Kind::other, &pins, "aten::ones");
  ASSERT_FALSE(at.ok());
  EXPECT_EQ(at.error().code, Code::no_memory);
}

TEST(FullStore, IsReportedWithResidentDataIntact) {
  Rig rig({.store = {.capacity = 2 * kBlock}});
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 5; ++i)
    storages.push_back(rig.filled(kBlock, i));  // three here, two below
  Pins pins(rig.engine());
  const Result<void*> more = rig.engine().allocate(kBlock, Kind::other, &pins, "aten::relu");
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::no_space);
  EXPECT_TRUE(mentions(more.error(), "aten::relu")) << more.error().message;
  for (uint64_t i = 2; i < 5; ++i) {
    EXPECT_TRUE(is_readable(storages[i]));
    EXPECT_TRUE(rig.holds(storages[i], kBlock, i));
  }
}

TEST(FullStore, TheEngineIsUsableAgainAfterAFree) {
  Rig rig({.store = {.capacity = 2 * kBlock}});
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 5; ++i) storages.push_back(rig.filled(kBlock, i));
  {
    Pins pins(rig.engine());
    ASSERT_FALSE(rig.engine().allocate(kBlock, Kind::other, &pins, "a test").ok());
  }
  rig.free(storages[0]);
  rig.free(
      storages
          [4]);  // memory and disk together now hold one block less than they could: room to trade places
  std::byte* next = rig.filled(kBlock, 9);
  EXPECT_TRUE(rig.holds(next, kBlock, 9));
  for (uint64_t i = 1; i < 4; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i)) << i;
}

TEST(FullStore, CleanBlocksCanStillLeave) {
  Rig rig({.store = {.capacity = 2 * kBlock}});
  std::byte* clean = rig.filled(kBlock, 1);
  rig.push_out(clean);
  EXPECT_TRUE(rig.holds(clean, kBlock, 1));
  std::byte* dirty = rig.filled(kBlock, 2);
  rig.store().set_capacity(rig.store().in_use());
  Pins pins(rig.engine());
  rig.pin(pins, dirty, kBlock, Access::read);
  std::byte* output = rig.allocate_pinned(2 * kBlock, pins);
  EXPECT_FALSE(is_readable(clean));
  write_pattern(output, 2 * kBlock, 3);
  EXPECT_TRUE(has_pattern(dirty, kBlock, 2));
}

TEST(FullStore, WhatIsBelowCanStillBeRead) {
  Rig rig({.store = {.capacity = 6 * kBlock}, .spare_places = 3});
  std::vector<std::byte*> storages;
  for (uint64_t i = 0;; ++i) {
    Pins pins(rig.engine());
    const Result<void*> at = rig.engine().allocate(kBlock, Kind::other, &pins, "aten::relu");
    if (!at.ok()) {
      EXPECT_EQ(at.error().code, Code::no_space);
      break;
    }
    storages.push_back(static_cast<std::byte*>(at.value()));
    write_pattern(storages.back(), kBlock, i);
  }
  ASSERT_EQ(storages.size(), 6u) << "three in memory, three below";
  for (int turn = 0; turn < 3; ++turn) {
    for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i)) << i;
  }
  // One load may touch two blocks: both must be there together.
  for (int turn = 0; turn < 3; ++turn) {
    Pins pins(rig.engine());
    rig.pin(pins, storages[turn], kBlock, Access::read);
    rig.pin(pins, storages[turn + 1], kBlock, Access::read);
  }
}

TEST(BrokenWrite, IsAnErrorAtThePinThatNeededTheRoomAndNothingIsLost) {
  Rig rig({.store = {.fail = FailAt{.n = 0, .operation = Operation::write}}});
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 3; ++i) storages.push_back(rig.filled(kBlock, i));
  Pins pins(rig.engine());
  const Result<void*> refused = rig.engine().allocate(kBlock, Kind::other, &pins, "aten::add");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::io);
  EXPECT_TRUE(mentions(refused.error(), "aten::add")) << refused.error().message;
  EXPECT_TRUE(mentions(refused.error(), "injected")) << refused.error().message;
  std::byte* at = rig.allocate_pinned(kBlock, pins);  // once more: the disk has recovered
  write_pattern(at, kBlock, 9);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i));
  EXPECT_TRUE(has_pattern(at, kBlock, 9));
}

TEST(BrokenRead, IsAnErrorAtThePinThatNeededItAndARetryWorks) {
  Rig rig;
  std::byte* at = rig.filled(2 * kBlock, 1);
  rig.push_out(at);
  rig.push_out(at + kBlock);
  rig.store().fail(FailAt{.n = 0, .operation = Operation::read});
  Pins pins(rig.engine());
  const Result<void> refused = rig.try_pin(pins, at, 2 * kBlock, Access::read, "aten::mm");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::io);
  EXPECT_TRUE(mentions(refused.error(), "injected")) << refused.error().message;
  EXPECT_TRUE(pins.empty());
  ASSERT_TRUE(rig.try_pin(pins, at, 2 * kBlock, Access::read, "aten::mm").ok());
  EXPECT_TRUE(has_pattern(at, 2 * kBlock, 1));
}

TEST(BrokenRead, OfATouchIsReportedAndARetryWorks) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  rig.store().fail(FailAt{.n = 0, .operation = Operation::read});
  EXPECT_FALSE(rig.engine().touch(at, Access::read).ok());
  EXPECT_TRUE(rig.engine().touch(at, Access::read).ok());
  EXPECT_TRUE(has_pattern(at, kBlock, 1));
}

TEST(BrokenDisk, ForGoodLeavesAllThatIsResidentUsable) {
  Rig rig;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < 6; ++i) storages.push_back(rig.filled(kBlock, i));
  rig.store().fail(FailAt{.n = 0, .from_then_on = true});
  for (int round = 0; round < 3; ++round) {
    Pins pins(rig.engine());
    EXPECT_FALSE(rig.engine().allocate(kBlock, Kind::other, &pins, "a test").ok());
    EXPECT_FALSE(rig.try_pin(pins, storages[0], kBlock, Access::read).ok());
    for (uint64_t i = 3; i < 6; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i)) << i;
  }
  rig.store().fail(std::nullopt);
  rig.store().wait_until_idle();
  for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i)) << i;
}

}  // namespace
}  // namespace bottomless
