#include "io/disk_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/faulty_transfers.h"
#include "support/process.h"
#include "support/random.h"
#include "support/sanitizer.h"
#include "support/temporary_directory.h"
#include "support/virtual_clock.h"

namespace bottomless {
namespace {

std::unique_ptr<DiskStore> open_store(const DiskStoreOptions& options) {
  Result<std::unique_ptr<DiskStore>> store = DiskStore::open(options);
  EXPECT_TRUE(store.ok()) << store.error().message;
  return std::move(store).value();
}

Extent allocated(Store& store, Bytes bytes) {
  Result<Extent> extent = store.allocate(bytes);
  EXPECT_TRUE(extent.ok()) << extent.error().message;
  return extent.ok() ? extent.value() : Extent{};
}

Result<void> run(Store& store, Direction direction, const Extent& extent, Pieces pieces) {
  Completions completions;
  if (direction == Direction::read) {
    store.read(extent, std::move(pieces), Priority::demand, completions.expect());
  } else {
    store.write(extent, std::move(pieces), Priority::demand, completions.expect());
  }
  completions.wait_for_all();
  return completions.outcome(0);
}

TEST(DiskStore, NeedsADirectory) {
  const auto store = DiskStore::open({});
  ASSERT_FALSE(store.ok());
  EXPECT_EQ(store.error().code, Code::invalid_argument);
  EXPECT_NE(store.error().message.find("--disk"), std::string::npos);
}

TEST(DiskStore, ABadDirectoryAmongGoodOnesIsNamed) {
  const TemporaryDirectory good;
  const auto store = DiskStore::open({.directories = {good.path(), "/nowhere"}, .limit = {}});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.error().message.find("/nowhere"), std::string::npos) << store.error().message;
}

TEST(DiskStore, ExtentsAreRoundedAndDoNotOverlap) {
  const TemporaryDirectory directory;
  const auto store = open_store({.directories = {directory.path()}, .limit = {}});
  EXPECT_EQ(directory.entries(), 0u) << "nothing to see from outside";
  std::vector<Extent> extents;
  for (const Bytes bytes : {Bytes{1}, 4_KiB, 4_KiB + 1, 100_KiB, 20_MiB, 1_MiB}) {
    extents.push_back(allocated(*store, bytes));
    EXPECT_EQ(extents.back().bytes, round_to_store(bytes));
    EXPECT_EQ(extents.back().offset % Store::kAlignment, 0u);
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < extents.size(); ++i) {
    EXPECT_GE(extents[i].offset, extents[i - 1].offset + extents[i - 1].bytes);
  }
}

TEST(DiskStore, ExtentsTakeTurnsOverEquallyFastDirectories) {
  const TemporaryDirectory a, b, c;
  const auto store =
      open_store({.directories = {a.path(), b.path(), c.path()}, .limit = {}, .speeds = {1, 1, 1}});
  std::vector<size_t> count(3, 0);
  std::set<std::pair<uint32_t, uint64_t>> places;
  for (int i = 0; i < 30; ++i) {
    const Extent extent = allocated(*store, 64_KiB);
    ++count.at(extent.disk);
    EXPECT_TRUE(places.insert({extent.disk, extent.offset}).second);
  }
  EXPECT_EQ(count, (std::vector<size_t>{10, 10, 10}));
}

TEST(DiskStore, EachDiskTakesItsShareInProportionToItsSpeed) {
  const TemporaryDirectory a, b, c;
  const auto store = open_store(
      {.directories = {a.path(), b.path(), c.path()}, .limit = {}, .speeds = {3e9, 1e9, 2e9}});
  std::vector<Bytes> held(3, 0);
  std::vector<Extent> extents;
  Random random(82);
  BOTTOMLESS_TRACE_SEED(random);
  for (int i = 0; i < 600; ++i) {
    extents.push_back(allocated(*store, random.between(1, 64) * 4_KiB));
    held[extents.back().disk] += extents.back().bytes;
    if (i % 3 != 2) continue;
    const size_t index = random.below(extents.size());
    held[extents[index].disk] -= extents[index].bytes;
    store->free(extents[index]);
    extents.erase(extents.begin() + static_cast<ptrdiff_t>(index));
  }
  const double all = static_cast<double>(held[0] + held[1] + held[2]);
  EXPECT_NEAR(static_cast<double>(held[0]) / all, 3.0 / 6, 0.02);
  EXPECT_NEAR(static_cast<double>(held[1]) / all, 1.0 / 6, 0.02);
  EXPECT_NEAR(static_cast<double>(held[2]) / all, 2.0 / 6, 0.02);
}

struct Warnings {
  std::string all;
  LogSink sink() {
    return [this](LogLevel, std::string_view text) { all += std::string(text) + "\n"; };
  }
  bool mention(const std::string& text) const { return all.find(text) != std::string::npos; }
};

TEST(DiskStore, ASlowDiskIsNamed) {
  const TemporaryDirectory fast, slow;
  Warnings warnings;
  open_store({.directories = {fast.path(), slow.path()},
              .limit = {},
              .speeds = {1e9, 1e8},
              .log = warnings.sink()});
  EXPECT_TRUE(warnings.mention(slow.path().string())) << warnings.all;
  EXPECT_TRUE(warnings.mention("95.37 MiB/s")) << warnings.all;
}

TEST(DiskStore, EquallyFastDisksAreNotWarnedOf) {
  const TemporaryDirectory a, b;
  Warnings warnings;
  open_store({.directories = {a.path(), b.path()},
              .limit = {},
              .speeds = {1e9, 5e8},
              .log = warnings.sink()});
  EXPECT_FALSE(warnings.mention("slow")) << warnings.all;
}

// Several directories are measured before the first use; one that gives back something else is named.
TEST(DiskStore, ABrokenDiskAmongSeveralIsNamedBeforeTheRun) {
  for (const Fault fault : {Fault::corrupt, Fault::io_error}) {
    const TemporaryDirectory a, b;
    int opened = 0;
    Faults none;
    Faults broken{.fault = fault, .at = 0, .times = ~0ull};
    const auto store =
        DiskStore::open({.directories = {a.path(), b.path()},
                         .limit = {},
                         .transfers = [&]() -> Result<std::unique_ptr<Transfers>> {
                           return std::unique_ptr<Transfers>(std::make_unique<FaultyTransfers>(
                               make_threaded_transfers().value(), opened++ == 1 ? broken : none));
                         }});
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.error().message.find(b.path().string()), std::string::npos)
        << store.error().message;
    EXPECT_GT(broken.fired, 0u);
  }
}

TEST(DiskStore, TooLittleSpaceIsSaidBeforeTheRun) {
  const TemporaryDirectory directory;
  Warnings warnings;
  open_store({.directories = {directory.path()},
              .limit = {},
              .wanted = Bytes{1} << 60,
              .log = warnings.sink()});
  EXPECT_TRUE(warnings.mention("are free in '" + directory.path().string())) << warnings.all;
  Warnings none;
  open_store({.directories = {directory.path()}, .limit = {}, .wanted = 1, .log = none.sink()});
  EXPECT_FALSE(none.mention("free")) << none.all;
}

TEST(DiskStore, ADiskThatDoesNotAnswerIsNamed) {
  const TemporaryDirectory a, b;
  std::vector<Faults> faults(2);
  faults[1].fault = Fault::hang;
  faults[1].times = ~0ull;
  size_t opened = 0;
  VirtualClock clock;
  const auto store =
      open_store({.directories = {a.path(), b.path()},
                  .limit = {},
                  .speeds = {1, 1},
                  .clock = &clock,
                  .transfers = [&]() -> Result<std::unique_ptr<Transfers>> {
                    return std::unique_ptr<Transfers>(std::make_unique<FaultyTransfers>(
                        make_threaded_transfers().value(), faults[opened++]));
                  }});
  Completions completions;
  AlignedBuffer buffer(64_KiB);
  buffer.fill(1);
  store->write(allocated(*store, 64_KiB), {buffer.span()}, Priority::demand, completions.expect());
  completions.wait_for_all();  // the first disk has answered, however slow it is
  store->write(allocated(*store, 64_KiB), {buffer.span()}, Priority::demand, completions.expect());
  while (!store->overdue(std::chrono::nanoseconds(0))) std::this_thread::yield();
  constexpr std::chrono::minutes kTimeout(1);
  EXPECT_FALSE(store->overdue(kTimeout));
  clock.advance(kTimeout);
  const std::optional<Error> late = store->overdue(kTimeout);
  ASSERT_TRUE(late);
  EXPECT_NE(late->message.find(b.path().string()), std::string::npos) << late->message;
  EXPECT_NE(late->message.find("for 60 s"), std::string::npos) << late->message;
  EXPECT_FALSE(store->overdue(std::chrono::hours(1)));
  faults[1].release();
  completions.wait_for_all();
  EXPECT_TRUE(completions.outcome(1).ok());
  EXPECT_FALSE(store->overdue(std::chrono::nanoseconds(0)));
}

TEST(DiskStore, RoundTripsManySizesInManyPieces) {
  Random random(81);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory a, b;
  const auto store = open_store({.directories = {a.path(), b.path()}, .limit = {}});
  struct Kept {
    Extent extent;
    uint64_t key;
    Bytes bytes;
  };
  auto cut = [&](AlignedBuffer& buffer) {
    Pieces pieces;
    for (std::span<std::byte> rest = buffer.span(); !rest.empty();) {
      const size_t piece = std::min<size_t>(rest.size(), random.between(1, 64) * 4_KiB);
      pieces.push_back(rest.first(piece));
      rest = rest.subspan(piece);
    }
    return pieces;
  };
  std::vector<Kept> kept;
  for (uint64_t key = 1; key <= 60; ++key) {
    const Bytes bytes =
        round_to_store(random.one_in(6) ? random.between(1, 3_MiB) : random.between(1, 128_KiB));
    kept.push_back({allocated(*store, bytes), key, bytes});
    AlignedBuffer buffer(bytes);
    buffer.fill(key);
    ASSERT_TRUE(run(*store, Direction::write, kept.back().extent, cut(buffer)).ok());
    if (random.one_in(4)) {
      const size_t index = random.below(kept.size());
      store->free(kept[index].extent);
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(index));
    }
  }
  for (const Kept& each : kept) {
    AlignedBuffer buffer(each.bytes);
    ASSERT_TRUE(run(*store, Direction::read, each.extent, cut(buffer)).ok());
    ASSERT_EQ(buffer.mismatch(each.key), buffer.size());
  }
}

TEST(DiskStore, FreedRoomIsUsedAgainSoTheFileStaysCompact) {
  const TemporaryDirectory directory;
  const auto store = open_store({.directories = {directory.path()}, .limit = {}});
  std::vector<Extent> extents;
  Bytes most = 0;
  for (int round = 0; round < 50; ++round) {
    while (extents.size() < 8) {
      extents.push_back(allocated(*store, 1_MiB));
      most = std::max(most, extents.back().offset + extents.back().bytes);
    }
    store->free(extents[static_cast<size_t>(round) % extents.size()]);
    extents.erase(extents.begin() +
                  static_cast<ptrdiff_t>(static_cast<size_t>(round) % extents.size()));
  }
  EXPECT_EQ(most, 8_MiB);
}

TEST(DiskStore, TheWholeLimitCanBeUsedAndNotAByteMore) {
  for (const Bytes extent_bytes : {4_KiB, 1_MiB, 10_MiB, 7_MiB}) {
    SCOPED_TRACE(format_bytes(extent_bytes));
    const TemporaryDirectory directory;
    const Bytes limit = 70_MiB;
    const auto store = open_store({.directories = {directory.path()}, .limit = limit});
    std::vector<Extent> extents;
    for (Bytes used = 0; used + extent_bytes <= limit; used += extent_bytes) {
      Result<Extent> extent = store->allocate(extent_bytes);
      ASSERT_TRUE(extent.ok()) << format_bytes(used) << " in use: " << extent.error().message;
      extents.push_back(extent.value());
      ASSERT_LE(extent.value().offset + extent.value().bytes, limit);
    }
    const Result<Extent> refused = store->allocate(extent_bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::no_space);
    EXPECT_NE(refused.error().message.find("70 MiB"), std::string::npos) << refused.error().message;
    EXPECT_NE(refused.error().message.find("--disk-limit"), std::string::npos)
        << refused.error().message;
    EXPECT_NE(refused.error().message.find(directory.path().string()), std::string::npos)
        << refused.error().message;
    store->free(extents.front());
    EXPECT_TRUE(store->allocate(extent_bytes).ok()) << "after a free there is room again";
  }
}

TEST(DiskStore, TheLimitCountsAllDirectoriesTogether) {
  const TemporaryDirectory a, b;
  const auto store = open_store({.directories = {a.path(), b.path()}, .limit = 24_MiB});
  std::vector<Bytes> ends(2, 0);
  while (true) {
    Result<Extent> extent = store->allocate(1_MiB);
    if (!extent.ok()) break;
    ends[extent.value().disk] = std::max(ends[extent.value().disk], extent.value().offset + 1_MiB);
  }
  EXPECT_EQ(ends[0] + ends[1], 24_MiB);
}

TEST(DiskStore, AFullDiskIsAnErrorOnlyWhenNothingFitsAnyMore) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  const TemporaryDirectory directory;
  const std::string answer = in_child([&]() -> std::string {
    if (std::string why = mount_privately("tmpfs", "size=6m", directory.path()); !why.empty())
      return "skip: " + why;
    auto store = DiskStore::open({.directories = {directory.path()}, .limit = {}});
    if (!store.ok()) return store.error().message;
    for (int i = 0; i < 5; ++i) {  // a growth of 16 MiB ahead does not fit; one of just enough does
      if (Result<Extent> extent = store.value()->allocate(1_MiB); !extent.ok())
        return extent.error().message;
    }
    while (true) {
      Result<Extent> extent = store.value()->allocate(1_MiB);
      if (extent.ok()) continue;
      return extent.error().code == Code::no_space ? "fine" : extent.error().message;
    }
  });
  if (answer.starts_with("skip: ")) GTEST_SKIP() << answer;
  EXPECT_EQ(answer, "fine");
}

}  // namespace
}  // namespace bottomless
