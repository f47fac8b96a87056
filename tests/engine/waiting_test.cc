// Operations that hold pins and wait for each other's room: one must step back or fail, none may wait for ever.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit

// Each operation pins two blocks of its own in one call; together they need four.
TEST(Waiting, OperationsThatPinMoreThanFitsTogetherTakeTurns) {
  Rig rig;
  constexpr int kThreads = 3;
  std::vector<std::byte*> storages;
  for (uint64_t i = 0; i < kThreads; ++i) storages.push_back(rig.filled(2 * kBlock, i));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 100; ++round) {
        Pins pins(rig.engine());
        const Result<void> pinned = rig.try_pin(pins, storages[t], 2 * kBlock, Access::write);
        ASSERT_TRUE(pinned.ok()) << pinned.error().message;
        ASSERT_TRUE(has_pattern(storages[t], 2 * kBlock, t));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One holds its inputs and needs room for its output; the other is only pinning, so it must give way.
TEST(Waiting, AnOperationThatIsPinningGivesWayToOneThatAllocates) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::byte* a = rig.filled(kBlock, 1);
    std::byte* b = rig.filled(2 * kBlock, 2);
    std::barrier start(2);
    std::thread allocating([&] {
      Pins pins(rig.engine());
      rig.pin(pins, a, kBlock, Access::read);
      start.arrive_and_wait();
      const Result<void*> output =
          rig.engine().allocate(2 * kBlock, Kind::other, &pins, "allocating");
      EXPECT_TRUE(output.ok()) << output.error().message;
      EXPECT_TRUE(has_pattern(a, kBlock, 1));
    });
    std::thread pinning([&] {
      start.arrive_and_wait();
      Pins pins(rig.engine());
      const Result<void> pinned = rig.try_pin(pins, b, 2 * kBlock, Access::read);
      EXPECT_TRUE(pinned.ok()) << pinned.error().message;
      EXPECT_TRUE(has_pattern(b, 2 * kBlock, 2));
    });
    allocating.join();
    pinning.join();
  }
}

TEST(Waiting, AnOperationThatWaitsWithHalfOfItsPinsGivesThemBackForOneThatAllocates) {
  Rig rig;
  std::byte* a = rig.filled(kBlock, 1);
  std::byte* b = rig.filled(3 * kBlock, 2);
  rig.push_out(b);
  Pins pins(rig.engine());
  rig.pin(pins, a, kBlock, Access::read);
  std::thread pinning([&] { EXPECT_TRUE(rig.holds(b, 3 * kBlock, 2)); });
  while (!is_readable(b) || !is_readable(b + kBlock)) std::this_thread::yield();
  for (int i = 0; i < 20000; ++i) std::this_thread::yield();  // every chance to wait for the third
  const Result<void*> output = rig.engine().allocate(kBlock, Kind::other, &pins, "allocating");
  EXPECT_TRUE(output.ok()) << output.error().message;
  EXPECT_TRUE(has_pattern(a, kBlock, 1));
  pins.release();
  pinning.join();
}

// What an operation pinned earlier it cannot give back. Two of these in each other's way: at least one must hear of it,
// and whoever does not must come through.
TEST(Waiting, OperationsThatCannotStepBackFarEnoughFailInsteadOfHanging) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::vector<std::byte*> storages;
    for (uint64_t i = 0; i < 4; ++i) storages.push_back(rig.filled(kBlock, i));
    std::barrier start(2);
    int failed = 0;
    std::mutex mutex;
    auto operation = [&](uint64_t mine) {
      Pins pins(rig.engine());
      rig.pin(pins, storages[mine], kBlock, Access::read);
      start.arrive_and_wait();  // both hold one; each now needs two more, and there is room for one
      std::byte* more = rig.allocate(2 * kBlock);
      const Result<void> pinned = rig.try_pin(pins, more, 2 * kBlock, Access::write);
      if (!pinned.ok()) {
        EXPECT_EQ(pinned.error().code, Code::no_memory);
        std::lock_guard lock(mutex);
        ++failed;
      }
      EXPECT_TRUE(has_pattern(storages[mine], kBlock, mine)) << "the earlier pin still holds";
    };
    std::thread first(operation, 0);
    std::thread second(operation, 1);
    first.join();
    second.join();
    EXPECT_LE(failed, 1) << "one of them has all the room once the other has given up";
    for (uint64_t i = 0; i < 4; ++i) EXPECT_TRUE(rig.holds(storages[i], kBlock, i));
  }
}

TEST(Waiting, OperationsThatAllAllocateFailInsteadOfHanging) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::barrier start(3);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        Pins pins(rig.engine());
        std::byte* first = rig.allocate_pinned(kBlock, pins);
        write_pattern(first, kBlock, 1);
        start.arrive_and_wait();  // all room is taken
        const Result<void*> second = rig.engine().allocate(kBlock, Kind::other, &pins, "a test");
        if (!second.ok()) {
          EXPECT_EQ(second.error().code, Code::no_memory);
        }
        EXPECT_TRUE(has_pattern(first, kBlock, 1));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Waiting, AnOperationWaitsForOneThatIsStillRunning) {
  Rig rig;
  std::byte* a = rig.filled(2 * kBlock, 1);
  std::byte* b = rig.filled(2 * kBlock, 2);
  auto running = std::make_unique<Pins>(rig.engine());
  rig.pin(*running, a, 2 * kBlock, Access::read);
  std::thread waiting([&] { EXPECT_TRUE(rig.holds(b, 2 * kBlock, 2)); });
  EXPECT_TRUE(has_pattern(a, 2 * kBlock, 1));
  running.reset();
  waiting.join();
}

// A kernel that reads what its schema does not name.
TEST(Waiting, AnAccessInsideAnOperationThatHoldsAllMemoryFailsAndNamesIt) {
  Rig rig;
  std::byte* hidden = rig.filled(kBlock, 1);
  std::optional<Pins> all(rig.engine());
  rig.allocate_pinned(3 * kBlock, *all);
  const Result<bool> touched =
      rig.engine().touch(hidden, Access::read, {.inside = "aten::greedy", .holding = 1});
  ASSERT_FALSE(touched.ok());
  EXPECT_EQ(touched.error().code, Code::no_memory);
  EXPECT_NE(touched.error().message.find("aten::greedy and 0 other"), std::string::npos)
      << touched.error().message;
  all.reset();
  EXPECT_TRUE(rig.engine().touch(hidden, Access::read).value());
  EXPECT_TRUE(rig.holds(hidden, kBlock, 1));
}

// Each operation holds what the access inside the other one needs.
TEST(Waiting, AccessesInsideOperationsThatBlockEachOtherFailInsteadOfHanging) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::byte* hidden = rig.filled(kBlock, 1);
    std::byte* other = rig.filled(kBlock, 2);
    std::optional<Pins> first(rig.engine());
    std::optional<Pins> second(rig.engine());
    rig.allocate_pinned(2 * kBlock, *first);
    rig.allocate_pinned(kBlock, *second);
    std::atomic<int> failed = 0;
    const auto access = [&](std::byte* at, const char* name, std::optional<Pins>& pins) {
      const Result<bool> touched =
          rig.engine().touch(at, Access::write, {.inside = name, .holding = 1});
      if (!touched.ok()) {
        ++failed;
        EXPECT_NE(touched.error().message.find(name), std::string::npos);
      }
      pins.reset();  // the operation ends, well or not
    };
    std::thread a([&] { access(hidden, "aten::first", first); });
    std::thread b([&] { access(other, "aten::second", second); });
    a.join();
    b.join();
    EXPECT_EQ(failed, 1);  // the other found the room that this one gave back
    EXPECT_TRUE(rig.holds(hidden, kBlock, 1) && rig.holds(other, kBlock, 2));
  }
}

// It can be told by an exception, the access only by a signal that ends the process.
TEST(Waiting, AnOperationThatAllocatesFailsForAnAccessInsideAnother) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::byte* hidden = rig.filled(kBlock, 1);
    std::optional<Pins> accessing(rig.engine());
    std::optional<Pins> allocating(rig.engine());
    rig.allocate_pinned(kBlock, *accessing);
    rig.allocate_pinned(2 * kBlock, *allocating);
    std::thread allocates([&] {
      EXPECT_FALSE(rig.engine().allocate(kBlock, Kind::other, &*allocating, "allocating").ok());
      allocating.reset();
    });
    const Result<bool> touched =
        rig.engine().touch(hidden, Access::read, {.inside = "aten::accessing", .holding = 1});
    EXPECT_TRUE(touched.ok()) << touched.error().message;
    allocates.join();
  }
}

// One access waits for an operation inside of which another one waits: both must be heard.
TEST(Waiting, WhoeverIsAboutToWaitForRoomIsAnnounced) {
  RigOptions options;
  std::atomic<int> announced = 0;
  options.before_waiting = [&] { ++announced; };
  Rig rig(options);
  std::byte* outside = rig.filled(kBlock, 1);
  std::byte* hidden = rig.filled(kBlock, 2);
  std::optional<Pins> operation(rig.engine());
  rig.allocate_pinned(3 * kBlock, *operation);
  announced = 0;
  std::thread waits([&] { EXPECT_TRUE(rig.engine().touch(outside, Access::read).ok()); });
  while (announced == 0) std::this_thread::yield();
  const Accessor inside{.inside = "aten::greedy", .holding = 1};
  EXPECT_FALSE(rig.engine().touch(hidden, Access::read, inside).ok());
  operation.reset();
  waits.join();
}

TEST(Waiting, AChargeInsideAnOperationMakesAPinningOneGiveWay) {
  for (int round = 0; round < 30; ++round) {
    Rig rig;
    std::byte* a = rig.filled(kBlock, 1);
    std::byte* b = rig.filled(2 * kBlock, 2);
    std::barrier start(2);
    std::thread charging([&] {
      Pins pins(rig.engine());
      rig.pin(pins, a, kBlock, Access::read);
      start.arrive_and_wait();
      const Result<void> charged = rig.engine().charge(1_MiB, &pins, "charging");
      EXPECT_TRUE(charged.ok()) << charged.error().message;
      EXPECT_TRUE(has_pattern(a, kBlock, 1));
      rig.engine().discharge(1_MiB);
    });
    std::thread pinning([&] {
      start.arrive_and_wait();
      EXPECT_TRUE(rig.holds(b, 2 * kBlock, 2));
    });
    charging.join();
    pinning.join();
  }
}

}  // namespace
}  // namespace bottomless
