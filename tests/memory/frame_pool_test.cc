#include "memory/frame_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "memory/frame_counts.h"
#include "support/process.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr FrameSizes kSizes{.large = 64_KiB, .small = 16_KiB};

FrameCounts counts_of(std::initializer_list<uint32_t> by_class) {
  FrameCounts counts;
  std::copy(by_class.begin(), by_class.end(), counts.of.begin());
  return counts;
}

TEST(FramesFor, LargestFramesThenAtMostOneOfEachSmallerSize) {
  const FrameSizes sizes{.large = 2_MiB, .small = 256_KiB};  // 2 MiB, 1 MiB, 512 KiB, 256 KiB
  EXPECT_EQ(frames_for(0, sizes), FrameCounts{});
  EXPECT_EQ(frames_for(1, sizes), counts_of({0, 0, 0, 1}));
  EXPECT_EQ(frames_for(256_KiB, sizes), counts_of({0, 0, 0, 1}));
  EXPECT_EQ(frames_for(256_KiB + 1, sizes), counts_of({0, 0, 1, 0}));
  EXPECT_EQ(frames_for(2_MiB - 300_KiB, sizes), counts_of({0, 1, 1, 1}));
  EXPECT_EQ(frames_for(2_MiB, sizes), counts_of({1, 0, 0, 0}));
  EXPECT_EQ(frames_for(5_MiB + 1, sizes), counts_of({2, 1, 0, 1}));
  EXPECT_EQ(frames_for(16_MiB + 1, sizes), counts_of({8, 1, 0, 0})) << "rounded to a sixteenth";
}

TEST(FramesFor, OneSizeMeansThatSizeOnly) {
  const FrameSizes sizes{.large = 64_KiB, .small = 64_KiB};
  EXPECT_EQ(frames_for(64_KiB + 1, sizes), counts_of({2}));
}

TEST(FramesFor, HoldWhatWasAskedForAndWasteLittleInFewFrames) {
  Random random(42);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 20000; ++i) {
    const Bytes small = 4_KiB << random.below(5);
    const FrameSizes sizes{.large = small << random.below(6), .small = small};
    const Bytes bytes = random.below(20 * sizes.large);
    const FrameCounts counts = frames_for(bytes, sizes);
    const Bytes held = counts.bytes(sizes);
    ASSERT_GE(held, bytes);
    ASSERT_LE(held - bytes, std::max(sizes.small, bytes / 16)) << bytes << " in " << sizes.large;
    ASSERT_LE(counts.total(), bytes / sizes.large + sizes.classes());
  }
}

class Pool : public testing::Test {
 protected:
  void make(Bytes limit, FrameSizes sizes = kSizes) {
    slots_ = FramePool::slot_bytes(limit, sizes);
    Result<AddressSpace> space = AddressSpace::reserve(slots_ + 16_MiB, sizes.large);
    ASSERT_TRUE(space.ok());
    space_ = std::make_unique<AddressSpace>(std::move(space).value());
    pool_ = std::make_unique<FramePool>(*space_, space_->base(), limit, sizes);
  }
  Frames take(FrameCounts counts) {
    Result<Frames> frames = pool_->take(counts);
    EXPECT_TRUE(frames.ok()) << frames.error().message;
    return frames.ok() ? std::move(frames).value() : Frames{};
  }
  std::byte* range(Bytes offset) { return space_->base() + slots_ + offset; }

  Bytes slots_ = 0;
  std::unique_ptr<AddressSpace> space_;
  std::unique_ptr<FramePool> pool_;
};

TEST_F(Pool, StartsWithoutMemoryAndMakesItOnDemand) {
  make(1_MiB);
  EXPECT_EQ(pool_->committed(), 0u);
  EXPECT_EQ(pool_->available(), 1_MiB);
  Frames frames = take(frame_counts(kSizes, 2, 3));
  EXPECT_EQ(frames.slots.size(), 5u);
  EXPECT_EQ(pool_->committed(), 2 * 64_KiB + 3 * 16_KiB);
  EXPECT_EQ(pool_->in_use(), pool_->committed());
  pool_->park(std::move(frames));
  EXPECT_EQ(pool_->in_use(), 0u);
  EXPECT_EQ(pool_->parked(), pool_->committed());
  EXPECT_EQ(pool_->available(), 1_MiB) << "parked frames are there to be taken";
}

TEST_F(Pool, RefusesWhatIsNotAvailableAndTakesNothing) {
  make(256_KiB);
  Frames held = take(frame_counts(kSizes, 3, 0));
  const Result<Frames> more = pool_->take(frame_counts(kSizes, 1, 1));
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::no_memory);
  EXPECT_EQ(pool_->in_use(), 192_KiB);
  pool_->park(std::move(held));
}

TEST_F(Pool, TurnsParkedFramesOfOneSizeIntoTheOther) {
  make(256_KiB);
  pool_->park(take(frame_counts(kSizes, 0, 16)));
  EXPECT_EQ(pool_->committed(), 256_KiB);
  pool_->park(take(frame_counts(kSizes, 4, 0)));
  EXPECT_EQ(pool_->committed(), 256_KiB);
  Frames mixed = take(frame_counts(kSizes, 2, 8));
  EXPECT_EQ(pool_->in_use(), 256_KiB);
  pool_->park(std::move(mixed));
}

TEST_F(Pool, AskingForBothSizesWhenBothAreShortStillSucceeds) {
  make(256_KiB);
  pool_->park(take(frame_counts(kSizes, 3, 4)));
  Frames frames =
      take(frame_counts(kSizes, 2, 8));  // 8 small ones are only there if large ones are given up
  EXPECT_EQ(pool_->in_use(), 256_KiB);
  pool_->park(std::move(frames));
  frames = take(frame_counts(kSizes, 4, 0));
  EXPECT_EQ(pool_->in_use(), 256_KiB);
  pool_->park(std::move(frames));
}

TEST_F(Pool, ALoweredBudgetIsMetAtOnceOrWhenFramesComeBack) {
  make(256_KiB);
  Frames held = take(frame_counts(kSizes, 2, 0));
  pool_->park(take(frame_counts(kSizes, 2, 0)));
  pool_->set_budget(192_KiB);
  EXPECT_EQ(pool_->committed(), 192_KiB);
  EXPECT_EQ(pool_->available(), 64_KiB);
  pool_->set_budget(64_KiB);
  EXPECT_EQ(pool_->committed(), 128_KiB) << "frames in use cannot go";
  EXPECT_EQ(pool_->available(), 0u);
  pool_->park(std::move(held));
  EXPECT_EQ(pool_->committed(), 64_KiB);
  pool_->set_budget(1_GiB);
  EXPECT_EQ(pool_->budget(), 256_KiB) << "never above the limit";
}

TEST_F(Pool, PiecesCoverTheBytesInOrder) {
  make(1_MiB);
  Frames frames = take(frame_counts(kSizes, 1, 2));
  const auto pieces = frames.pieces(64_KiB + 20_KiB, kSizes);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[0].data(), frames.slots[0]);
  EXPECT_EQ(pieces[0].size(), 64_KiB);
  EXPECT_EQ(pieces[1].size(), 16_KiB);
  EXPECT_EQ(pieces[2].data(), frames.slots[2]);
  EXPECT_EQ(pieces[2].size(), 4_KiB);
  pool_->park(std::move(frames));
}

TEST_F(Pool, MapPutsTheContentUnderTheRangeInOrder) {
  make(1_MiB);
  Frames frames = take(frame_counts(kSizes, 1, 2));
  for (size_t i = 0; i < 3; ++i)
    std::memset(frames.slots[i], static_cast<int>(i + 1), i == 0 ? 64_KiB : 16_KiB);
  std::byte* slot = frames.slots[0];
  pool_->map(range(0), std::move(frames), Access::read);
  EXPECT_FALSE(is_readable(slot));
  EXPECT_TRUE(is_readable(range(0)));
  EXPECT_FALSE(is_writable(range(0)));
  EXPECT_FALSE(is_writable(range(95_KiB)));
  EXPECT_EQ(range(0)[0], std::byte{1});
  EXPECT_EQ(range(64_KiB)[0], std::byte{2});
  EXPECT_EQ(range(80_KiB)[16_KiB - 1], std::byte{3});
  EXPECT_FALSE(is_readable(range(96_KiB)));

  Frames back = pool_->unmap(range(0), frame_counts(kSizes, 1, 2));
  EXPECT_FALSE(is_readable(range(0)));
  EXPECT_FALSE(is_readable(range(95_KiB)));
  ASSERT_EQ(back.slots.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_writable(back.slots[i])) << "a frame outside a range is there to be filled";
    EXPECT_EQ(back.slots[i][100], static_cast<std::byte>(i + 1));
  }
  pool_->park(std::move(back));
}

TEST_F(Pool, OneFrameSizeWorksAsWell) {
  make(256_KiB, {.large = 64_KiB, .small = 64_KiB});
  Frames frames = take(frames_for(200_KiB, pool_->sizes()));
  EXPECT_EQ(pool_->in_use(), 256_KiB);
  pool_->map(range(0), std::move(frames), Access::write);
  EXPECT_TRUE(is_writable(range(255_KiB)));
  pool_->park(pool_->unmap(range(0), frame_counts(pool_->sizes(), 4, 0)));
  pool_->set_budget(0);
  EXPECT_EQ(pool_->committed(), 0u);
}

TEST_F(Pool, RandomHistoriesKeepTheBudgetAndTheContents) {
  Random random(43);
  BOTTOMLESS_TRACE_SEED(random);
  make(1_MiB);
  struct Held {
    std::byte* at;
    FrameCounts counts;
    std::byte tag;
  };
  std::vector<Held> held;
  Bytes next = 0;  // ranges are used round and round
  auto ends_carry = [&](const Held& range) {
    return range.at[0] == range.tag && range.at[range.counts.bytes(kSizes) - 1] == range.tag;
  };
  for (int step = 0; step < 6000; ++step) {
    const uint64_t choice = random.below(10);
    if (choice < 5) {
      const FrameCounts counts = frame_counts(kSizes, random.below(4), random.between(1, 6));
      const bool fits = counts.bytes(kSizes) <= pool_->available();
      Result<Frames> frames = pool_->take(counts);
      ASSERT_EQ(frames.ok(), fits);
      if (!fits) continue;
      const auto tag = static_cast<std::byte>(random.between(1, 255));
      for (const auto piece : frames.value().pieces(counts.bytes(kSizes), kSizes)) {
        std::memset(piece.data(), static_cast<int>(tag), piece.size());
      }
      if (next + 512_KiB > 16_MiB) next = 0;
      const bool free_range = std::none_of(held.begin(), held.end(), [&](const Held& other) {
        return range(next) < other.at + 512_KiB && other.at < range(next) + 512_KiB;
      });
      if (!free_range) {
        pool_->park(std::move(frames).value());
      } else {
        pool_->map(range(next), std::move(frames).value(),
                   random.one_in(2) ? Access::read : Access::write);
        held.push_back({range(next), counts, tag});
      }
      next += 512_KiB;
    } else if (choice < 9 && !held.empty()) {
      const size_t index = random.below(held.size());
      ASSERT_TRUE(ends_carry(held[index]));
      Frames frames = pool_->unmap(held[index].at, held[index].counts);
      for (std::byte* slot : frames.slots) ASSERT_EQ(slot[5], held[index].tag);
      pool_->park(std::move(frames));
      held.erase(held.begin() + static_cast<ptrdiff_t>(index));
    } else if (choice == 9) {
      pool_->set_budget(random.below(1200_KiB));
    }
    Bytes mapped = 0;
    for (const Held& range : held) mapped += range.counts.bytes(kSizes);
    ASSERT_EQ(pool_->in_use(), mapped);
    ASSERT_EQ(pool_->committed(), mapped + pool_->parked());
    ASSERT_LE(pool_->committed(), std::max(pool_->budget(), mapped));
  }
}

}  // namespace
}  // namespace bottomless
