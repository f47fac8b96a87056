#include "io/throttled_store.h"

#include <gtest/gtest.h>

#include <atomic>

#include "support/aligned_buffer.h"
#include "support/memory_store.h"

namespace bottomless {
namespace {

TEST(ThrottledStore, GivesBackWhatWasWrittenAndEndsEveryTransferOnce) {
  Result<std::unique_ptr<Store>> made =
      ThrottledStore::over(std::make_unique<MemoryStore>(MemoryStoreOptions{}), 256_MiB);
  ASSERT_TRUE(made.ok());
  Store& store = *made.value();
  AlignedBuffer from(64_KiB), into(64_KiB);
  from.fill(5);
  const Extent extent = store.allocate(64_KiB).value();
  std::atomic<int> ended{0};
  std::atomic<bool> ok{true};
  const auto count = [&](Result<void> outcome) {
    ok = ok && outcome.ok();
    ++ended;
    ended.notify_all();
  };
  const auto wait_for = [&](int wanted) {
    for (int now = ended; now < wanted; now = ended) ended.wait(now);
  };
  store.write(extent, {from.span()}, Priority::demand, count);
  wait_for(1);
  store.read(extent, {into.span()}, Priority::prefetch, count);
  wait_for(2);
  EXPECT_TRUE(ok);
  EXPECT_EQ(into.mismatch(5), into.size());
  store.free(extent);
}

TEST(ThrottledStore, EndsWhatIsUnderWayBeforeItGoes) {
  std::atomic<int> ended{0};
  AlignedBuffer buffer(64_KiB);
  {
    Result<std::unique_ptr<Store>> made =
        ThrottledStore::over(std::make_unique<MemoryStore>(MemoryStoreOptions{}), 1);  // a day each
    const Extent extent = made.value()->allocate(64_KiB).value();
    made.value()->write(extent, {buffer.span()}, Priority::demand, [&](Result<void>) { ++ended; });
  }
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace bottomless
