// Deferred work: done before anybody sees that it was, in its order, and once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "engine/rig.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit

// Asked of the kernel, which does not fault.
bool is_readable(const std::byte* at) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(pipe(ends), 0);
  const bool readable = write(ends[1], at, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

class Work final : public DeferredWork {
 public:
  explicit Work(std::function<Result<void>()> body) : body_(std::move(body)) {}
  Result<void> run() override { return body_(); }

 private:
  std::function<Result<void>()> body_;
};

class Deferred : public ::testing::TestWithParam<Eviction> {
 protected:
  Deferred() : rig_({.eviction = GetParam()}) {
    // Only where memory has been short is anything deferred.
    std::vector<std::byte*> others;
    for (int i = 0; i < 4; ++i) others.push_back(rig_.filled(kBlock, 77));
    for (std::byte* other : others) rig_.free(other);
  }

  // An update that makes what a key stands for into what the next key stands for.
  std::shared_ptr<Work> increment(std::byte* at, uint64_t key) {
    return std::make_shared<Work>([this, at, key]() -> Result<void> {
      Pins pins(rig_.engine());
      Result<void> pinned = rig_.try_pin(pins, at, kBlock, Access::write, "an update");
      if (!pinned.ok()) return pinned;
      EXPECT_TRUE(has_pattern(at, kBlock, key));
      write_pattern(at, kBlock, key + 1);
      ++runs_;
      return {};
    });
  }
  bool put_off(std::byte* at, uint64_t key) {
    const Need need{.address = at, .bytes = 1, .access = Access::write};
    return rig_.engine().defer({&need, 1}, increment(at, key));
  }

  Rig rig_;
  std::atomic<int> runs_ = 0;
};

TEST_P(Deferred, AreDoneBeforeAnOperationSeesTheStorage) {
  std::byte* at = rig_.filled(kBlock, 1);
  ASSERT_TRUE(put_off(at, 1));
  EXPECT_EQ(runs_, 0);
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
  EXPECT_EQ(runs_, 1);
}

TEST_P(Deferred, AreDoneInTheirOrder) {
  std::byte* at = rig_.filled(kBlock, 1);
  for (uint64_t key = 1; key <= 5; ++key) ASSERT_TRUE(put_off(at, key));
  EXPECT_TRUE(rig_.holds(at, kBlock, 6));
  EXPECT_EQ(runs_, 5);
}

TEST_P(Deferred, OfOneStorageAreDoneBeforeLaterOnesOfAnother) {
  // As clipping and the update: the gradient is scaled first, then both are used.
  std::byte* gradient = rig_.filled(kBlock, 1);
  std::byte* parameter = rig_.filled(kBlock, 10);
  ASSERT_TRUE(put_off(gradient, 1));
  const Need both[] = {{.address = parameter, .bytes = 1}, {.address = gradient, .bytes = 1}};
  ASSERT_TRUE(rig_.engine().defer(
      both, std::make_shared<Work>([&]() -> Result<void> {
        Pins pins(rig_.engine());
        const Need needs[] = {{.address = parameter, .bytes = kBlock, .access = Access::write},
                              {.address = gradient, .bytes = kBlock, .access = Access::read}};
        Result<void> pinned = rig_.engine().pin(pins, needs, "an update");
        if (!pinned.ok()) return pinned;
        EXPECT_TRUE(has_pattern(gradient, kBlock, 2));
        write_pattern(parameter, kBlock, 11);
        return {};
      })));
  EXPECT_TRUE(rig_.holds(parameter, kBlock, 11));
  EXPECT_EQ(runs_, 1);
}

TEST_P(Deferred, AreDoneBeforeAnAccessOutsideAnyOperation) {
  std::byte* at = rig_.filled(kBlock, 1);
  ASSERT_TRUE(put_off(at, 1));
  const Result<bool> touched = rig_.engine().touch(at, Access::read);
  ASSERT_TRUE(touched.ok() && touched.value());
  EXPECT_TRUE(has_pattern(at, kBlock, 2));
}

TEST_P(Deferred, HideTheStorageFromEverybodyElse) {
  if (GetParam() == Eviction::eagerly) GTEST_SKIP() << "nothing is in memory to be hidden";
  std::byte* at = rig_.filled(kBlock, 1);
  ASSERT_TRUE(put_off(at, 1));
  EXPECT_FALSE(is_readable(at));
  // Also after it left memory and came back ahead of its use.
  rig_.push_out(at);
  const Need need{.address = at, .bytes = kBlock};
  rig_.engine().prefetch({&need, 1});
  rig_.engine().wait_for_io();
  EXPECT_FALSE(is_readable(at));
  EXPECT_EQ(runs_, 0);
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
}

TEST_P(Deferred, ThatFailsIsStillDeferred) {
  std::byte* at = rig_.filled(kBlock, 1);
  bool broken = true;
  const Need need{.address = at, .bytes = 1};
  ASSERT_TRUE(rig_.engine().defer({&need, 1}, std::make_shared<Work>([&]() -> Result<void> {
                                    if (broken) return Error{Code::io, "no luck today"};
                                    return increment(at, 1)->run();
                                  })));
  Pins pins(rig_.engine());
  const Result<void> refused = rig_.try_pin(pins, at, kBlock, Access::read);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("no luck"), std::string::npos);
  broken = false;
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
}

TEST_P(Deferred, AreDoneOnceWhoeverComes) {
  for (int round = 0; round < 20; ++round) {
    std::byte* at = rig_.filled(kBlock, 1);
    ASSERT_TRUE(put_off(at, 1));
    runs_ = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_TRUE(rig_.holds(at, kBlock, 2)); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(runs_, 1);
    rig_.free(at);
  }
}

TEST_P(Deferred, CanBeFlushed) {
  std::vector<std::byte*> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(rig_.filled(kBlock, 1));
    ASSERT_TRUE(put_off(all.back(), 1));
  }
  ASSERT_TRUE(rig_.engine().flush_deferred().ok());
  EXPECT_EQ(runs_, 5);
  ASSERT_TRUE(rig_.engine().flush_deferred().ok());
  EXPECT_EQ(runs_, 5) << "once";
  for (std::byte* at : all) EXPECT_TRUE(rig_.holds(at, kBlock, 2));
}

TEST_P(Deferred, AreDroppedWhenNobodyCanSeeThem) {
  std::byte* kept = rig_.filled(kBlock, 1);
  std::byte* dropped = rig_.filled(kBlock, 1);
  ASSERT_TRUE(put_off(kept, 1));
  ASSERT_TRUE(put_off(dropped, 1));
  const uint64_t before = rig_.stats().live_storages;
  rig_.free(dropped);
  EXPECT_EQ(rig_.stats().live_storages, before) << "it may still be needed";
  rig_.engine().drop_unseen_deferred();
  EXPECT_EQ(rig_.stats().live_storages, before - 1);
  EXPECT_EQ(runs_, 0);
  EXPECT_TRUE(rig_.holds(kept, kBlock, 2));
  EXPECT_EQ(runs_, 1);
}

TEST_P(Deferred, OfAStorageThatIsFreedAreDoneForTheOthers) {
  std::byte* parameter = rig_.filled(kBlock, 1);
  std::byte* gradient = rig_.filled(kBlock, 5);
  const Need needs[] = {{.address = parameter, .bytes = 1, .access = Access::write},
                        {.address = gradient, .bytes = 1}};
  ASSERT_TRUE(rig_.engine().defer(
      needs, std::make_shared<Work>([&]() -> Result<void> {
        Pins pins(rig_.engine());
        EXPECT_TRUE(rig_.try_pin(pins, gradient, kBlock, Access::read, "an update").ok());
        EXPECT_TRUE(rig_.try_pin(pins, parameter, kBlock, Access::write, "an update").ok());
        EXPECT_TRUE(has_pattern(gradient, kBlock, 5));
        write_pattern(parameter, kBlock, 2);
        return {};
      })));
  const uint64_t before = rig_.stats().live_storages;
  rig_.free(gradient);
  rig_.engine().drop_unseen_deferred();
  EXPECT_TRUE(rig_.holds(parameter, kBlock, 2));
  EXPECT_EQ(rig_.stats().live_storages, before - 1);
}

// Doing the first of two shows the storage to whoever does it, but to nobody else before the second is done.
TEST_P(Deferred, ThatAreLeftStayHiddenWhenOthersWereDone) {
  std::byte* parameter = rig_.filled(kBlock, 1);
  std::byte* gradient = rig_.filled(kBlock, 5);
  const Need needs[] = {{.address = parameter, .bytes = 1, .access = Access::write},
                        {.address = gradient, .bytes = 1}};
  ASSERT_TRUE(rig_.engine().defer(needs, increment(parameter, 1)));
  ASSERT_TRUE(put_off(parameter, 2));
  EXPECT_TRUE(rig_.holds(gradient, kBlock, 5));
  EXPECT_EQ(runs_, 1);
  EXPECT_FALSE(is_readable(parameter));
  EXPECT_TRUE(rig_.engine().touch(parameter, Access::read).ok());
  EXPECT_EQ(runs_, 2);
  EXPECT_TRUE(has_pattern(parameter, kBlock, 3));
}

TEST_P(Deferred, OfStoragesThatNobodyHasTouchedYet) {
  std::byte* fresh = rig_.allocate(kBlock);  // a state that the update itself fills
  const Need need{.address = fresh, .bytes = 1};
  ASSERT_TRUE(rig_.engine().defer({&need, 1}, std::make_shared<Work>([&]() -> Result<void> {
                                    Pins pins(rig_.engine());
                                    Result<void> pinned = rig_.try_pin(pins, fresh, kBlock,
                                                                       Access::write, "an update");
                                    if (!pinned.ok()) return pinned;
                                    EXPECT_TRUE(is_readable(fresh));
                                    write_pattern(fresh, kBlock, 5);
                                    return {};
                                  })));
  EXPECT_TRUE(rig_.holds(fresh, kBlock, 5));
}

TEST_P(Deferred, AnAccessFromWithinTheWorkIsServed) {
  // A kernel that touches what it did not announce faults; waiting for the kernel to end would be for ever.
  std::byte* at = rig_.filled(kBlock, 1);
  const Need need{.address = at, .bytes = 1};
  ASSERT_TRUE(rig_.engine().defer({&need, 1}, std::make_shared<Work>([&]() -> Result<void> {
                                    std::thread service([&] {
                                      EXPECT_TRUE(rig_.engine().touch(at, Access::write).ok());
                                    });
                                    service.join();
                                    Pins pins(rig_.engine());
                                    rig_.pin(pins, at, kBlock, Access::write);
                                    write_pattern(at, kBlock, 2);
                                    return {};
                                  })));
  EXPECT_TRUE(rig_.holds(at, kBlock, 2));
}

TEST_P(Deferred, WaitForNobodyWhoIsLooking) {
  std::byte* at = rig_.filled(kBlock, 1);
  Pins pins(rig_.engine());
  rig_.pin(pins, at, kBlock, Access::read);
  EXPECT_FALSE(put_off(at, 1)) << "whoever holds a pin would see the change come late";
}

TEST(DebtsWhereAllFits, ThereAreNone) {
  Rig rig;
  std::byte* at = rig.filled(kBlock, 1);
  const Need need{.address = at, .bytes = 1};
  EXPECT_FALSE(
      rig.engine().defer({&need, 1}, std::make_shared<Work>([]() -> Result<void> { return {}; })));
}

INSTANTIATE_TEST_SUITE_P(Modes, Deferred,
                         ::testing::Values(Eviction::when_needed, Eviction::eagerly),
                         [](const auto& info) {
                           return info.param == Eviction::eagerly ? "Eagerly" : "WhenNeeded";
                         });

}  // namespace
}  // namespace bottomless
