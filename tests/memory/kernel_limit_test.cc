// The kernel as the judge of the limit: RLIMIT_DATA, VmData and the count of mappings. Limits are
// set in a child.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "memory/frame_counts.h"
#include "memory/heap.h"
#include "support/process.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr FrameSizes kSizes{.large = 2_MiB, .small = 64_KiB};
constexpr Bytes kSlack = 512_KiB;  // what the child's own malloc may need meanwhile

void allow_data(Bytes bytes) {
  const rlimit limit{memory_field("VmData") + bytes, RLIM_INFINITY};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) std::abort();
}

struct Pooled {
  explicit Pooled(Bytes limit)
      : space(AddressSpace::reserve(FramePool::slot_bytes(limit, kSizes) + 64_MiB, 2_MiB).value()),
        pool(space, space.base(), limit, kSizes) {}
  AddressSpace space;
  FramePool pool;
};

TEST(KernelLimit, ARefusalIsAnErrorAndLeavesThePoolIntact) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  EXPECT_EQ(in_child([]() -> std::string {
              Pooled pooled(64_MiB);
              FramePool& pool = pooled.pool;
              Frames held = pool.take(frame_counts(kSizes, 2, 3)).value();
              for (std::byte* slot : held.slots) slot[0] = std::byte{42};
              allow_data(5_MiB);
              const Bytes before = pool.committed();
              const Result<Frames> refused = pool.take(frame_counts(kSizes, 8, 0));
              if (refused.ok()) return "16 MiB were given where 5 MiB were allowed";
              if (refused.error().code != Code::no_memory) return refused.error().message;
              if (refused.error().message.find("ulimit -d") == std::string::npos)
                return refused.error().message;
              if (pool.in_use() != before) return "frames were taken";
              // Linux 6.12 and later check before they count what replaces other mappings: one
              // frame too many passes.
              if (pool.committed() > before + 5_MiB + kSizes.large)
                return "more is committed than the kernel gave";
              for (std::byte* slot : held.slots) {
                if (slot[0] != std::byte{42}) return "content was lost";
              }
              pool.park(std::move(held));
              held = pool.take(frame_counts(kSizes, 3, 3)).value();
              return pool.in_use() == 3 * 2_MiB + 3 * 64_KiB ? "fine" : "the pool is confused";
            }),
            "fine");
}

TEST(KernelLimit, ARefusalOfTheSecondSizePutsTheFirstBack) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  EXPECT_EQ(in_child([]() -> std::string {
              Pooled pooled(64_MiB);
              FramePool& pool = pooled.pool;
              pool.park(pool.take(frame_counts(kSizes, 2, 0)).value());
              allow_data(kSlack);
              const Result<Frames> refused = pool.take(frame_counts(kSizes, 2, 20));
              if (refused.ok()) return "1.25 MiB were given where half of one was allowed";
              if (pool.in_use() != 0) return "frames were taken";
              if (pool.take(frame_counts(kSizes, 2, 0)).ok()) return "fine";
              return "the large frames are gone";
            }),
            "fine");
}

// All of the budget is in use, the kernel allows no more than that, and frames keep moving.
TEST(KernelLimit, MovesNeedNoMemoryBeyondTheBudget) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  EXPECT_EQ(in_child([]() -> std::string {
              const auto heap = Heap::create({.limit = 16_MiB, .frames = kSizes}).value();
              std::vector<std::byte*> ranges;
              for (int i = 0; i < 24; ++i) ranges.push_back(heap->reserve(2_MiB).value());
              allow_data(16_MiB + kSlack);
              for (size_t i = 0; i < 200; ++i) {
                if (i >= 8) heap->unmap(ranges[(i - 8) % ranges.size()], 2_MiB);
                Result<Frames> frames = heap->take(2_MiB);
                if (!frames.ok()) return frames.error().message;
                heap->map(ranges[i % ranges.size()], std::move(frames).value(), Access::write);
                std::memset(ranges[i % ranges.size()], static_cast<int>(i), 2_MiB);
              }
              return "fine";
            }),
            "fine");
}

TEST(KernelLimit, DataOfTheProcessGrowsByNoMoreThanTheBudget) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  EXPECT_EQ(in_child([]() -> std::string {
              const auto heap = Heap::create({.limit = 16_MiB, .frames = kSizes}).value();
              std::vector<std::byte*> ranges;
              for (int i = 0; i < 16; ++i) ranges.push_back(heap->reserve(3_MiB).value());
              std::vector<bool> present(ranges.size(), false);
              Random random(61);
              const Bytes before = memory_field("VmData");
              Bytes most = 0;
              for (int step = 0; step < 3000; ++step) {
                const size_t i = random.below(ranges.size());
                if (present[i]) {
                  heap->unmap(ranges[i], 3_MiB);
                  present[i] = false;
                } else if (heap->available() >= heap->footprint(3_MiB)) {
                  heap->map(ranges[i], heap->take(3_MiB).value(), Access::write);
                  present[i] = true;
                  std::memset(ranges[i], 1, 3_MiB);
                }
                most = std::max(most, memory_field("VmData") - before);
              }
              if (most > 16_MiB + kSlack) return "the process grew by " + format_bytes(most);
              if (most < 12_MiB)
                return "only " + format_bytes(most) + " were used: the test tests nothing";
              return "fine";
            }),
            "fine");
}

TEST(KernelLimit, TheCountOfMappingsStaysBoundedAfterThousandsOfMoves) {
  const auto heap =
      Heap::create({.limit = 4_MiB, .frames = {.large = 64_KiB, .small = 16_KiB}}).value();
  Random random(62);
  BOTTOMLESS_TRACE_SEED(random);
  std::vector<std::byte*> ranges;
  for (int i = 0; i < 200; ++i) ranges.push_back(heap->reserve(100_KiB).value());
  std::vector<bool> present(ranges.size(), false);
  for (int step = 0; step < 20000; ++step) {
    const size_t i = random.below(ranges.size());
    if (present[i]) {
      heap->unmap(ranges[i], 100_KiB);
      present[i] = false;
    } else if (heap->available() >= heap->footprint(100_KiB)) {
      heap->map(ranges[i], heap->take(100_KiB).value(),
                random.one_in(2) ? Access::read : Access::write);
      present[i] = true;
      if (is_writable(ranges[i])) ranges[i][0] = std::byte{1};
    }
  }
  const size_t frames = heap->committed() / 16_KiB;  // at most
  EXPECT_LE(mappings_in(ranges.front() - 16_MiB, 16_MiB + 64_MiB), 2 * frames + 10);
}

}  // namespace
}  // namespace bottomless
