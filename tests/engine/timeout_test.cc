// A disk that hangs: whoever needs it hears of it, nobody else does, and when it comes back nothing is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit
constexpr std::chrono::nanoseconds kTimeout = std::chrono::minutes(1);

RigOptions by(const VirtualClock& clock) { return {.timeout = kTimeout, .clock = &clock}; }

void expect_overdue(const Error& error, const std::string& who) {
  EXPECT_EQ(error.code, Code::io);
  EXPECT_NE(error.message.find(who), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("not answered"), std::string::npos) << error.message;
}

TEST(Timeout, AReadThatHangsIsAnErrorAtTheOperatorThatNeedsIt) {
  VirtualClock clock;
  Rig rig(by(clock));
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  rig.store().hold();
  Pins pins(rig.engine());
  clock.advance_at_next_wait(kTimeout);
  const Result<void> pinned = rig.try_pin(pins, at, kBlock, Access::read, "aten::mm");
  ASSERT_FALSE(pinned.ok());
  expect_overdue(pinned.error(), "aten::mm");
  EXPECT_TRUE(pins.empty());

  std::byte* other = rig.allocate(kBlock);
  EXPECT_TRUE(rig.try_pin(pins, other, kBlock, Access::write).ok()) << "others go on";
  pins.release();

  rig.store().release();
  EXPECT_TRUE(rig.holds(at, kBlock, 1)) << "the disk has come back, and so has the block";
}

TEST(Timeout, AWriteThatHangsIsAnErrorWhereRoomIsNeededAndNothingIsLost) {
  VirtualClock clock;
  Rig rig(by(clock));
  std::vector<std::byte*> full;
  for (uint64_t i = 0; i < 3; ++i) full.push_back(rig.filled(kBlock, i));
  rig.store().hold();
  Pins pins(rig.engine());
  clock.advance_at_next_wait(kTimeout);
  const Result<void*> refused = rig.engine().allocate(kBlock, Kind::other, &pins, "aten::add");
  ASSERT_FALSE(refused.ok());
  expect_overdue(refused.error(), "aten::add");
  for (uint64_t i = 0; i < 3; ++i) {
    Pins each(rig.engine());
    ASSERT_TRUE(rig.try_pin(each, full[i], kBlock, Access::read).ok()) << "it is still in memory";
    EXPECT_TRUE(has_pattern(full[i], kBlock, i));
  }
  rig.store().release();
  EXPECT_TRUE(rig.engine().allocate(kBlock, Kind::other, &pins, "aten::add").ok());
  pins.release();
  for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(rig.holds(full[i], kBlock, i));
}

TEST(Timeout, WaitingForOthersIsNotTheDisksFaultButIsSaidOnce) {
  VirtualClock clock;
  RigOptions options = by(clock);
  std::atomic<int> told = 0, waits = 0;
  options.log = [&](LogLevel, std::string_view text) {
    told += text.find("memory that other operations hold") != std::string_view::npos;
  };
  Rig rig(options);
  std::byte* at = rig.filled(kBlock, 1);
  std::optional<Pins> all(rig.engine());
  rig.allocate_pinned(3 * kBlock, *all);
  std::atomic<bool> done = false;
  std::thread waiting([&] {
    EXPECT_TRUE(rig.holds(at, kBlock, 1));
    done = true;
  });
  // At every wait the timeout has passed once more.
  clock.on_wait([&] {
    ++waits;
    clock.advance(kTimeout);
  });
  while (told == 0) std::this_thread::yield();
  for (const int before = waits; waits < before + 4;) std::this_thread::yield();
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(done);
  clock.on_wait([] {});
  all.reset();
  waiting.join();
  EXPECT_TRUE(done);
}

// A thread of a kernel's own: whose, nobody knows, but while nothing happens at all it is that of
// who holds the memory.
TEST(Timeout, AnAccessOfAHelperFailsWhenNothingHappensForLong) {
  VirtualClock clock;
  Rig rig(by(clock));
  std::byte* at = rig.filled(kBlock, 1);
  std::optional<Pins> all(rig.engine());
  rig.allocate_pinned(3 * kBlock, *all);
  clock.on_wait([&] { clock.advance(kTimeout); });
  const Result<bool> touched =
      rig.engine().touch(at, Access::read, {.inside = "aten::greedy", .helps = true});
  ASSERT_FALSE(touched.ok());
  EXPECT_NE(touched.error().message.find("aten::greedy"), std::string::npos);
  clock.on_wait([] {});
  all.reset();
  EXPECT_TRUE(rig.holds(at, kBlock, 1));
}

TEST(Timeout, AnEngineThatEndsSaysWhatItWaitsFor) {
  VirtualClock clock;
  MemoryStore store({.clock = &clock});
  std::atomic<int> told = 0;
  RigOptions options = by(clock);
  options.log = [&](LogLevel level, std::string_view text) {
    told += level == LogLevel::warning && text.find("not answered") != std::string_view::npos;
    store.release();
  };
  auto engine = make_engine(options, store);
  std::vector<void*> storages;
  store.hold();
  for (int i = 0; i < 3; ++i) {
    Pins pins(*engine);
    storages.push_back(engine->allocate(kBlock, Kind::other, &pins, "a test").value());
  }
  Pins pins(*engine);
  clock.advance_at_next_wait(kTimeout);
  EXPECT_FALSE(engine->allocate(2 * kBlock, Kind::other, &pins, "a test").ok());
  EXPECT_EQ(told, 0);
  engine.reset();
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace bottomless
