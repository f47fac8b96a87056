#include "io/checked_store.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <future>

#include "support/memory_store.h"

namespace bottomless {
namespace {

constexpr Bytes kBytes = 64_KiB;

// Aligned memory of one value.
struct Memory {
  explicit Memory(int value) : at(static_cast<std::byte*>(std::aligned_alloc(4096, kBytes))) {
    std::memset(at, value, kBytes);
  }
  ~Memory() { std::free(at); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Pieces whole() { return {{at, kBytes}}; }
  Pieces in_three() { return {{at, 4096}, {at + 4096, 8192}, {at + 12288, kBytes - 12288}}; }

  std::byte* at;
};

class Checked : public testing::Test {
 protected:
  Result<void> write(const Extent& extent, Pieces pieces) {
    std::promise<Result<void>> done;
    store_.write(extent, std::move(pieces), [&](Result<void> r) { done.set_value(std::move(r)); });
    return done.get_future().get();
  }
  Result<void> read(const Extent& extent, Pieces pieces) {
    std::promise<Result<void>> done;
    store_.read(extent, std::move(pieces), [&](Result<void> r) { done.set_value(std::move(r)); });
    return done.get_future().get();
  }

  MemoryStore* below_ = new MemoryStore;  // NOLINT: owned by the store
  CheckedStore store_{std::unique_ptr<Store>(below_)};
};

TEST_F(Checked, ReadsWhatWasWrittenInWhateverPieces) {
  Memory out(7);
  Memory in(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, out.whole()).ok());
  ASSERT_TRUE(read(extent, in.in_three()).ok());
  EXPECT_EQ(std::memcmp(in.at, out.at, kBytes), 0);
  store_.free(extent);
}

TEST_F(Checked, AFlippedBitIsAnErrorThatNamesThePlace) {
  Memory out(7);
  Memory in(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, out.in_three()).ok());
  below_->corrupt();
  const Result<void> outcome = read(extent, in.whole());
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, Code::io);
  EXPECT_NE(outcome.error().message.find("not what was written"), std::string::npos);
  EXPECT_NE(outcome.error().message.find("64 KiB at offset"), std::string::npos)
      << outcome.error().message;
  store_.free(extent);
}

TEST_F(Checked, WhatIsWrittenAgainIsComparedWithTheNewContent) {
  Memory first(1);
  Memory second(2);
  Memory in(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, first.whole()).ok());
  ASSERT_TRUE(write(extent, second.whole()).ok());
  EXPECT_TRUE(read(extent, in.whole()).ok());
  EXPECT_EQ(in.at[9], std::byte{2});
  store_.free(extent);
}

TEST_F(Checked, AnExtentThatWasGivenBackIsForgotten) {
  Memory out(1);
  Memory in(0);
  const Extent extent = store_.allocate(kBytes).value();
  ASSERT_TRUE(write(extent, out.whole()).ok());
  store_.free(extent);
  const Extent next = store_.allocate(kBytes).value();
  EXPECT_TRUE(read(next, in.whole()).ok());  // whatever it holds
  store_.free(next);
}

TEST_F(Checked, ErrorsOfTheStoreBelowComeThrough) {
  Memory out(1);
  const Extent extent = store_.allocate(kBytes).value();
  below_->fail(FailAt{.operation = Operation::write});
  EXPECT_FALSE(write(extent, out.whole()).ok());
  EXPECT_TRUE(write(extent, out.whole()).ok());
  store_.free(extent);
}

}  // namespace
}  // namespace bottomless
