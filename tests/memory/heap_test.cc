#include "memory/heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/process.h"

namespace bottomless {
namespace {

constexpr FrameSizes kSizes{.large = 64_KiB, .small = 16_KiB};

std::unique_ptr<Heap> make_heap(Bytes limit, Poison poison = Poison::off) {
  Result<std::unique_ptr<Heap>> heap =
      Heap::create({.limit = limit, .frames = kSizes, .poison = poison});
  EXPECT_TRUE(heap.ok()) << heap.error().message;
  return std::move(heap).value();
}

std::byte* reserve(Heap& heap, Bytes bytes) {
  Result<std::byte*> at = heap.reserve(bytes);
  EXPECT_TRUE(at.ok()) << at.error().message;
  return at.value();
}

void map(Heap& heap, std::byte* at, Bytes bytes, Access access = Access::write) {
  Result<Frames> frames = heap.take(bytes);
  ASSERT_TRUE(frames.ok()) << frames.error().message;
  heap.map(at, std::move(frames).value(), access);
}

std::byte* mapped(Heap& heap, Bytes bytes) {
  std::byte* at = reserve(heap, bytes);
  map(heap, at, bytes);
  return at;
}

TEST(FrameSizesFor, GiveManyLargeFramesAndSmallOnesForLittleWaste) {
  EXPECT_EQ(frame_sizes_for(64_MiB).large, 1_MiB);
  EXPECT_EQ(frame_sizes_for(4_GiB).large, 2_MiB);
  EXPECT_EQ(frame_sizes_for(64_GiB).large, 32_MiB);
  for (const Bytes limit : {8_MiB, 64_MiB, 4_GiB, 64_GiB})
    EXPECT_EQ(frame_sizes_for(limit).small, 16_KiB);
}

// Each frame may need two: its own and the ground behind it. A process has other mappings, so memory
// full of blocks of large frames, each with its tail, stays well below.
TEST(FrameSizesFor, KeepTheCountOfFramesBelowTheKernelsLimitOfMappings) {
  for (const size_t allowed : {size_t{8192}, kUsualMappings, size_t{1} << 20}) {
    for (Bytes limit = 1_MiB; limit <= 4_TiB; limit += limit / 3) {
      const FrameSizes sizes = frame_sizes_for(limit, allowed);
      EXPECT_LE(2 * 5 * (limit / sizes.large), allowed / 2) << format_bytes(limit);
      EXPECT_LE(sizes.classes(), kMostFrameClasses) << format_bytes(limit);
      EXPECT_LE(frames_for(2 * sizes.large - 1, sizes).total(), 5u) << format_bytes(limit);
    }
  }
}

// Small blocks until there are too many, then large ones until memory is full, all at their own
// addresses: the worst that can happen.
TEST(Heap, StaysBelowTheKernelsCountOfMappingsWhateverItHolds) {
  constexpr size_t kAllowed = 8192;
  const Bytes limit = 512_MiB;
  const FrameSizes sizes = frame_sizes_for(limit, kAllowed);
  auto created = Heap::create({.limit = limit, .frames = sizes, .most_mappings = kAllowed});
  ASSERT_TRUE(created.ok()) << created.error().message;
  Heap& heap = *created.value();
  struct Held {
    std::byte* at;
    Bytes bytes;
  };
  std::vector<Held> held;
  const auto hold = [&](Bytes bytes) {
    held.push_back({reserve(heap, bytes), bytes});
    heap.map(held.back().at, heap.take(bytes).value(), Access::write);
    // A hole behind each: nothing that the kernel could merge.
    reserve(heap, 64_KiB);
  };
  while (!heap.too_crowded_for(112_KiB)) hold(112_KiB);
  EXPECT_GT(held.size(), 100u);
  EXPECT_FALSE(heap.too_crowded_for(std::max(sizes.large, 4_MiB)));
  const Bytes awkward = 2 * sizes.large - sizes.large / 16;
  EXPECT_EQ(frames_for(awkward, sizes).total(), 5u);
  while (heap.available() >= heap.footprint(awkward)) hold(awkward);
  const auto* begin = held.front().at;
  EXPECT_LT(mappings_in(begin - 1_GiB, 1_TiB), kAllowed);
  for (const Held& each : held) heap.unmap(each.at, each.bytes);
  EXPECT_LT(mappings_in(begin - 1_GiB, 1_TiB), kAllowed);
}

TEST(Heap, AReservedRangeIsInaccessibleAndAligned) {
  const auto heap = make_heap(1_MiB);
  std::byte* small = reserve(*heap, 10);
  std::byte* large = reserve(*heap, 100_KiB);
  EXPECT_TRUE(heap->contains(small));
  EXPECT_FALSE(is_readable(small));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % kSizes.large, 0u) << "for huge pages";
  EXPECT_EQ(heap->committed(), 0u) << "addresses cost nothing";
  EXPECT_FALSE(heap->contains(&heap));
}

TEST(Heap, RangesMayFarExceedTheLimit) {
  const auto heap = make_heap(1_MiB);
  std::byte* first = reserve(*heap, 10_GiB);
  std::byte* second = reserve(*heap, 10_GiB);
  EXPECT_GE(second, first + 10_GiB);
  map(*heap, second + 5_GiB, 64_KiB);
  EXPECT_TRUE(is_writable(second + 5_GiB));
}

TEST(Heap, RunningOutOfAddressesIsAnErrorThatNamesTheLimit) {
  const auto heap = make_heap(1_MiB);
  Result<std::byte*> at = heap->reserve(20_TiB);
  ASSERT_FALSE(at.ok());
  EXPECT_EQ(at.error().code, Code::no_memory);
  EXPECT_NE(at.error().message.find("20 TiB"), std::string::npos) << at.error().message;
  EXPECT_NE(at.error().message.find("ulimit -v"), std::string::npos) << at.error().message;
  EXPECT_TRUE(heap->reserve(1_MiB).ok());
}

TEST(Heap, ReleasedAddressesAreUsedAgain) {
  const auto heap = make_heap(1_MiB);
  std::byte* first = reserve(*heap, 100_KiB);
  heap->release(first, 100_KiB);
  EXPECT_EQ(reserve(*heap, 100_KiB), first);
}

TEST(Heap, OffsetsStartAtTheFirstRangeAndStayBelowTwoToThe48) {
  const auto heap = make_heap(1_MiB);
  EXPECT_EQ(heap->offset_of(reserve(*heap, 16_KiB)), 0u);
  EXPECT_EQ(heap->offset_of(reserve(*heap, 16_KiB)), Heap::kGranule);
  EXPECT_LT(heap->offset_of(reserve(*heap, 16_KiB)) + 16_TiB, Bytes{1} << 48);
}

TEST(Heap, AnAbsentBlockIsNotAccessibleAndAReadOnlyOneNotWritable) {
  const auto heap = make_heap(1_MiB);
  std::byte* at = reserve(*heap, 128_KiB);
  EXPECT_FALSE(is_readable(at));
  map(*heap, at, 64_KiB, Access::read);
  EXPECT_TRUE(is_readable(at));
  EXPECT_FALSE(is_writable(at));
  EXPECT_FALSE(is_readable(at + 64_KiB)) << "the other block of the range is still absent";
  heap->protect(at, 64_KiB, Access::write);
  EXPECT_TRUE(is_writable(at + 64_KiB - 1));
  heap->unmap(at, 64_KiB);
  EXPECT_FALSE(is_readable(at));
}

TEST(Heap, ARetiredRangeIsReusedWithItsFrames) {
  const auto heap = make_heap(1_MiB);
  std::byte* at = mapped(*heap, 100_KiB);
  at[5] = std::byte{77};
  heap->retire(at, 100_KiB);
  EXPECT_EQ(heap->in_use(), 0u);
  EXPECT_EQ(heap->available(), 1_MiB) << "the frames of a retired range are there to be taken";
  EXPECT_EQ(heap->reuse(300_KiB), nullptr) << "another size";
  EXPECT_EQ(heap->reuse(99_KiB), at) << "the same footprint";
  EXPECT_EQ(at[5], std::byte{77}) << "no system call touched it";
  EXPECT_EQ(heap->in_use(), heap->footprint(100_KiB));
  EXPECT_EQ(heap->reuse(100_KiB), nullptr) << "only once";
}

TEST(Heap, TheRangeRetiredLastIsReusedFirst) {
  const auto heap = make_heap(1_MiB);
  std::byte* first = mapped(*heap, 64_KiB);
  std::byte* second = mapped(*heap, 64_KiB);
  heap->retire(first, 64_KiB);
  heap->retire(second, 64_KiB);
  EXPECT_EQ(heap->reuse(64_KiB), second);
  EXPECT_EQ(heap->reuse(64_KiB), first);
}

TEST(Heap, TakingDrawsOnRetiredRangesOldestFirst) {
  const auto heap = make_heap(256_KiB);
  std::byte* old_range = mapped(*heap, 128_KiB);
  std::byte* new_range = mapped(*heap, 128_KiB);
  heap->retire(old_range, 128_KiB);
  heap->retire(new_range, 128_KiB);
  std::byte* wanted = reserve(*heap, 64_KiB);
  map(*heap, wanted, 64_KiB);
  EXPECT_FALSE(is_readable(old_range)) << "it gave its frames";
  EXPECT_TRUE(is_readable(new_range));
  EXPECT_EQ(heap->reuse(128_KiB), new_range);
  EXPECT_LE(heap->committed(), 256_KiB);
}

TEST(Heap, ALoweredBudgetStripsRetiredRanges) {
  const auto heap = make_heap(256_KiB);
  std::byte* living = mapped(*heap, 64_KiB);
  std::byte* first = mapped(*heap, 64_KiB);
  std::byte* second = mapped(*heap, 128_KiB);
  heap->retire(first, 64_KiB);
  heap->retire(second, 128_KiB);
  EXPECT_EQ(heap->committed(), 256_KiB);
  heap->set_budget(64_KiB);
  EXPECT_EQ(heap->committed(), 64_KiB);
  EXPECT_EQ(heap->available(), 0u);
  EXPECT_TRUE(is_writable(living));
  EXPECT_FALSE(is_readable(first));
  EXPECT_FALSE(is_readable(second));
  EXPECT_EQ(heap->reuse(64_KiB), nullptr);
}

TEST(Heap, RetiringWhileTheBudgetIsOverdrawnGivesTheMemoryBack) {
  const auto heap = make_heap(256_KiB);
  std::byte* first = mapped(*heap, 128_KiB);
  std::byte* second = mapped(*heap, 128_KiB);
  heap->set_budget(128_KiB);
  EXPECT_EQ(heap->committed(), 256_KiB);
  heap->retire(first, 128_KiB);
  EXPECT_EQ(heap->committed(), 128_KiB);
  EXPECT_TRUE(is_writable(second));
}

TEST(Heap, PoisonedMemoryComesBackAsNothingButPoison) {
  const auto heap = make_heap(64_KiB, Poison::on);
  std::byte* at = mapped(*heap, 64_KiB);
  std::memset(at, 1, 64_KiB);
  heap->unmap(at, 64_KiB);
  map(*heap, at, 64_KiB);
  for (Bytes i = 0; i < 64_KiB; ++i) ASSERT_EQ(at[i], std::byte{0xFF}) << i;
  std::memset(at, 1, 64_KiB);
  heap->retire(at, 64_KiB);
  EXPECT_FALSE(is_readable(at)) << "a stale pointer must fault";
  EXPECT_EQ(heap->reuse(64_KiB), nullptr);
  std::byte* next = mapped(*heap, 64_KiB);
  for (Bytes i = 0; i < 64_KiB; ++i) ASSERT_EQ(next[i], std::byte{0xFF}) << i;
}

}  // namespace
}  // namespace bottomless
