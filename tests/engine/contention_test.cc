// Who waits for whom, without threads: every way in which nobody is left who could give room back.
#include "engine/contention.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

using Verdict = Contention::Verdict;
using Waiting = Contention::Waiting;

constexpr Contention::Waiter kPins{Waiting::to_pin, 1};
constexpr Contention::Waiter kAllocates{Waiting::to_allocate, 1};
constexpr Contention::Waiter kAccesses{Waiting::to_access,
                                       2};  // its own pins, and the operation's it is inside

Contention holders(int count) {
  Contention contention;
  for (int i = 0; i < count; ++i) contention.began_to_hold();
  return contention;
}

TEST(Contention, WhoIsAloneFails) {
  EXPECT_EQ(holders(1).verdict(kPins), Verdict::fail);
  EXPECT_EQ(holders(1).verdict(kAllocates), Verdict::fail);
  EXPECT_EQ(holders(2).verdict(kAccesses), Verdict::fail);
}

TEST(Contention, WhileAnotherRunsItIsWaitedFor) {
  EXPECT_EQ(holders(2).verdict(kPins), Verdict::wait);
  EXPECT_EQ(holders(2).verdict(kAllocates), Verdict::wait);
  EXPECT_EQ(holders(3).verdict(kAccesses), Verdict::wait);
}

TEST(Contention, OfTwoThatPinOneStepsBackAndTheOtherGoesOn) {
  Contention two = holders(2);
  two.begin_wait(kPins);
  EXPECT_EQ(two.verdict(kPins), Verdict::step_back);
  two.step_back(1);
  two.end_wait(kPins);
  EXPECT_EQ(two.verdict(kPins), Verdict::fail) << "whoever stepped back has nothing more to give";
  two.step_forward(1);
  EXPECT_EQ(two.verdict(kPins), Verdict::wait);
}

TEST(Contention, WhoAllocatesHasThoseWhoPinStepBackAndFailsWithoutThem) {
  Contention two = holders(2);
  two.begin_wait(kPins);
  EXPECT_EQ(two.verdict(kAllocates), Verdict::wake_others);
  two.end_wait(kPins);
  two.begin_wait(kAllocates);
  EXPECT_EQ(two.verdict(kAllocates), Verdict::fail);
}

TEST(Contention, AnAccessWakesWhoCanGiveUpAndFailsAmongAccesses) {
  Contention three = holders(3);
  three.begin_wait(kAllocates);
  EXPECT_EQ(three.verdict(kAccesses), Verdict::wake_others);
  Contention four = holders(4);
  four.begin_wait(kAccesses);
  EXPECT_EQ(four.verdict(kAccesses), Verdict::fail);
}

TEST(Contention, KnowsWhetherAnybodyWaits) {
  Contention one = holders(1);
  EXPECT_FALSE(one.anybody_waits());
  one.begin_wait({Waiting::to_allocate, 0});
  EXPECT_TRUE(one.anybody_waits()) << "even somebody who holds nothing";
  one.end_wait({Waiting::to_allocate, 0});
  EXPECT_FALSE(one.anybody_waits());
}

}  // namespace
}  // namespace bottomless
