#include "io/checked_store.h"

#include <gtest/gtest.h>

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
    store_.write(extent, std::move(pieces), Urgency::now, completions.expect());
    completions.wait_for_all();
    return completions.outcome(0);
  }
  Result<void> read(const Extent& extent, Pieces pieces) {
    Completions completions;
    store_.read(extent, std::move(pieces), Urgency::now, completions.expect());
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
