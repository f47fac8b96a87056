#include "io/checked_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <span>

#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/memory_store.h"

namespace bottomless {
namespace {

constexpr Bytes kBytes = 64_KiB;

Pieces in_three(AlignedBuffer& memory) {
  const std::span<std::byte> all = memory.span();
  return {all.first(4096), all.subspan(4096, 8192), all.subspan(12288)};
}

class Checked : public testing::Test {
 protected:
  Result<void> write(const Extent& extent, Pieces pieces) {
    Completions completions;
    store_.write(extent, std::move(pieces), Priority::demand, completions.expect());
    completions.wait_for_all();
    return completions.outcome(0);
  }
  Result<void> read(const Extent& extent, Pieces pieces) {
    Completions completions;
    store_.read(extent, std::move(pieces), Priority::demand, completions.expect());
    completions.wait_for_all();
    return completions.outcome(0);
  }
  static AlignedBuffer filled(uint64_t key) {
    AlignedBuffer memory(kBytes);
    memory.fill(key);
    return memory;
  }

  MemoryStore* below_ = new MemoryStore;  // NOLINT: owned by the store
  CheckedStore store_{std::unique_ptr<Store>(below_)};
};

TEST_F(Checked, ReadsWhatWasWrittenInWhateverPieces) {
  AlignedBuffer out = filled(7);
  AlignedBuffer in = filled(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, {out.span()}).ok());
  ASSERT_TRUE(read(extent, in_three(in)).ok());
  EXPECT_EQ(in.mismatch(7), kBytes);
  store_.free(extent);
}

TEST_F(Checked, AFlippedBitIsAnErrorThatNamesThePlace) {
  AlignedBuffer out = filled(7);
  AlignedBuffer in = filled(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, in_three(out)).ok());
  below_->corrupt();
  const Result<void> outcome = read(extent, {in.span()});
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, Code::io);
  EXPECT_NE(outcome.error().message.find("not what was written"), std::string::npos);
  EXPECT_NE(outcome.error().message.find("64 KiB at offset"), std::string::npos)
      << outcome.error().message;
  store_.free(extent);
}

// Every part that may be read of extents around the size of what has one sum, with the bit that flips at every place
// where a part or a sum may end: an error when the bit was in what was read, and never another result.
TEST_F(Checked, AFlippedBitIsFoundInWhateverPartIsRead) {
  constexpr Bytes kPage = Store::kAlignment;
  const Bytes unit = CheckedStore::kUnit;
  for (const Bytes bytes : {kPage, unit - kPage, unit, unit + kPage, 3 * unit + 5 * kPage}) {
    AlignedBuffer out(bytes);
    out.fill(7);
    const Extent extent = store_.allocate(bytes).value();
    ASSERT_TRUE(write(extent, {out.span()}).ok());
    std::set<Bytes> edges{0, bytes};
    for (const Bytes near : {unit / 2, unit, 2 * unit, bytes}) {
      for (const Bytes edge : {near - kPage, near, near + kPage})
        if (edge <= bytes) edges.insert(edge);
    }
    for (const Bytes flipped : edges) {
      if (flipped == bytes) continue;
      below_->flip(extent.offset + flipped);
      for (const Bytes begin : edges) {
        for (const Bytes end : edges) {
          if (begin >= end) continue;
          AlignedBuffer in(end - begin);
          const Extent part{extent.disk, extent.offset + begin, end - begin};
          const Result<void> outcome = read(part, {in.span()});
          const bool inside = begin <= flipped && flipped < end;
          const bool same = std::memcmp(in.data(), out.data() + begin, end - begin) == 0;
          ASSERT_EQ(same, !inside) << "the test tests nothing";
          ASSERT_TRUE(!outcome.ok() || same) << "bit at " << flipped << ", read from " << begin
                                             << " to " << end << " of " << bytes;
        }
      }
      below_->flip(extent.offset + flipped);
    }
    for (const Bytes begin : edges) {
      for (const Bytes end : edges) {
        if (begin >= end) continue;
        AlignedBuffer in(end - begin);
        const Extent part{extent.disk, extent.offset + begin, end - begin};
        ASSERT_TRUE(read(part, {in.span()}).ok()) << begin << ' ' << end << " of " << bytes;
        ASSERT_EQ(std::memcmp(in.data(), out.data() + begin, end - begin), 0);
      }
    }
    store_.free(extent);
  }
}

// A place may be larger than what was last written to it; what is behind that is not compared.
TEST_F(Checked, WhatIsBehindTheLastThatWasWrittenIsNotCompared) {
  AlignedBuffer first = filled(1);
  AlignedBuffer in = filled(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, {first.span()}).ok());
  ASSERT_TRUE(write(extent, {first.span().first(kBytes / 2)}).ok());
  below_->flip(extent.offset + kBytes - 1);
  EXPECT_TRUE(read(extent, {in.span()}).ok());
  EXPECT_TRUE(
      read({extent.disk, extent.offset + kBytes / 2, kBytes / 2}, {in.span().last(kBytes / 2)})
          .ok());
  below_->flip(extent.offset + kBytes / 2 - 1);
  EXPECT_FALSE(read(extent, {in.span()}).ok());
  store_.free(extent);
}

TEST_F(Checked, WhatIsWrittenAgainIsComparedWithTheNewContent) {
  AlignedBuffer first = filled(1);
  AlignedBuffer second = filled(2);
  AlignedBuffer in = filled(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, {first.span()}).ok());
  ASSERT_TRUE(write(extent, {second.span()}).ok());
  EXPECT_TRUE(read(extent, {in.span()}).ok());
  EXPECT_EQ(in.mismatch(2), kBytes);
  store_.free(extent);
}

TEST_F(Checked, AnExtentThatWasGivenBackIsForgotten) {
  AlignedBuffer out = filled(1);
  AlignedBuffer in = filled(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, {out.span()}).ok());
  store_.free(extent);
  const Extent next = store_.allocate(kBytes).value();
  EXPECT_TRUE(read(next, {in.span()}).ok());  // whatever it holds
  store_.free(next);
}

TEST_F(Checked, ErrorsOfTheStoreBelowComeThrough) {
  AlignedBuffer out = filled(1);
  const Extent extent = store_.allocate(kBytes).value();
  below_->fail(FailAt{.operation = Operation::write});
  EXPECT_FALSE(write(extent, {out.span()}).ok());
  EXPECT_TRUE(write(extent, {out.span()}).ok());
  store_.free(extent);
}

}  // namespace
}  // namespace bottomless
