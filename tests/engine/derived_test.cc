// Numbers worked out from a storage's content: kept while it comes and goes, forgotten when anybody writes.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "engine/rig.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit
constexpr uint64_t kWhat = 6;

class DerivedNumbers : public ::testing::Test {
 protected:
  DerivedNumbers() : at_(rig_.filled(2 * kBlock, 1)) {
    watch_ = rig_.engine().watch(at_).value_or(0);
    EXPECT_NE(watch_, 0u);
    rig_.engine().keep(at_, watch_, {.what = kWhat, .value = 3.5});
  }
  ~DerivedNumbers() override { rig_.free(at_); }

  std::optional<double> kept() { return rig_.engine().kept(at_ + kBlock, kWhat); }

  Rig rig_;
  std::byte* at_;
  uint64_t watch_ = 0;
};

TEST_F(DerivedNumbers, AreKeptWhileTheStorageIsReadAndComesAndGoes) {
  EXPECT_EQ(kept(), 3.5);
  EXPECT_TRUE(rig_.holds(at_, 2 * kBlock, 1));
  rig_.push_out(at_);
  EXPECT_EQ(kept(), 3.5);
  EXPECT_TRUE(rig_.holds(at_, 2 * kBlock, 1));
  EXPECT_EQ(kept(), 3.5);
}

TEST_F(DerivedNumbers, AreOfOneKind) {
  EXPECT_EQ(rig_.engine().kept(at_, kWhat + 1), std::nullopt);
  int elsewhere = 0;
  EXPECT_EQ(rig_.engine().watch(&elsewhere), std::nullopt);
  EXPECT_EQ(rig_.engine().kept(&elsewhere, kWhat), std::nullopt);
}

TEST_F(DerivedNumbers, AreForgottenWhenAnOperationWritesAnyPart) {
  {
    Pins pins(rig_.engine());
    rig_.pin(pins, at_ + kBlock + 8, 8, Access::write);
  }
  EXPECT_EQ(kept(), std::nullopt);
  rig_.engine().keep(at_, watch_, {.what = kWhat, .value = 4});  // of what was there before
  EXPECT_EQ(kept(), std::nullopt);
  EXPECT_TRUE(rig_.engine().watch(at_).has_value());  // by somebody else, meanwhile
  rig_.engine().keep(at_, watch_, {.what = kWhat, .value = 4});
  EXPECT_EQ(kept(), std::nullopt);
}

TEST_F(DerivedNumbers, AreForgottenWhenSomebodyWritesOutsideAnyOperation) {
  ASSERT_TRUE(rig_.engine().touch(at_, Access::read).ok());
  EXPECT_EQ(kept(), 3.5);
  ASSERT_TRUE(rig_.engine().touch(at_, Access::write).ok());
  EXPECT_EQ(kept(), std::nullopt);
}

TEST_F(DerivedNumbers, AreForgottenWhenItWasAwayAndIsBroughtInToBeWritten) {
  rig_.push_out(at_);
  rig_.fill(at_, 2 * kBlock, 2);
  EXPECT_EQ(kept(), std::nullopt);
}

// A fault is how a write is noticed: nothing may be writable, even if it was never on disk.
TEST_F(DerivedNumbers, AWatchedBlockIsReadOnlyHoweverItIsGranted) {
  class Nothing final : public DeferredWork {
    Result<void> run() override { return {}; }
  };
  std::byte* other = rig_.filled(2 * kBlock, 9);  // memory is short from here on
  const Need need{.address = at_, .bytes = 1, .access = Access::write};
  ASSERT_TRUE(rig_.engine().defer({&need, 1}, std::make_shared<Nothing>()));
  EXPECT_EQ(kept(), std::nullopt) << "a change is deferred";
  EXPECT_EQ(rig_.engine().watch(at_), std::nullopt);
  ASSERT_TRUE(rig_.engine().flush_deferred().ok());
  EXPECT_TRUE(rig_.holds(at_, 2 * kBlock, 1));  // granted again
  EXPECT_EQ(kept(), 3.5) << "nothing was changed after all";
  EXPECT_DEATH(*static_cast<volatile std::byte*>(at_) = std::byte{1}, "");
  rig_.free(other);
}

TEST_F(DerivedNumbers, AreNotWorkedOutWhileSomebodyMayWrite) {
  Pins pins(rig_.engine());
  rig_.pin(pins, at_, 8, Access::write);
  EXPECT_EQ(rig_.engine().watch(at_), std::nullopt);
  EXPECT_EQ(kept(), std::nullopt);
}

}  // namespace
}  // namespace bottomless
