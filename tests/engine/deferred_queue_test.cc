#include "engine/deferred_queue.h"

#include <gtest/gtest.h>

namespace bottomless {
namespace {

class Nothing final : public DeferredWork {
 public:
  Result<void> run() override { return {}; }
};

class DeferredQueueTest : public ::testing::Test {
 protected:
  DeferredWork& add(std::vector<DeferredWork::Touched> storages) {
    auto work = std::make_shared<Nothing>();
    queue_.add(work, std::move(storages));
    return *work;
  }

  DeferredQueue queue_;
  Storage parameter_, gradient_, other_;
};

TEST_F(DeferredQueueTest, RunsInTheOrderOfEachStorage) {
  DeferredWork& first = add({{&parameter_, true}, {&gradient_, false}});
  DeferredWork& second = add({{&parameter_, true}});
  DeferredWork& beside = add({{&other_, true}});
  EXPECT_EQ(DeferredQueue::first_of(parameter_), &first);
  EXPECT_EQ(DeferredQueue::first_of(other_), &beside);
  EXPECT_EQ(&queue_.oldest(), &first);
  std::vector<Storage*> released;
  queue_.remove(first, released);
  EXPECT_EQ(DeferredQueue::first_of(parameter_), &second);
  EXPECT_EQ(DeferredQueue::first_of(gradient_), nullptr);
  EXPECT_TRUE(released.empty());
}

TEST_F(DeferredQueueTest, WhoRunsItIsNotHeldUpByIt) {
  DeferredWork& work = add({{&parameter_, true}});
  DeferredQueue::begin(work);
  EXPECT_EQ(DeferredQueue::first_of(parameter_), nullptr);
  std::thread([&] { EXPECT_EQ(DeferredQueue::first_of(parameter_), &work); }).join();
  DeferredQueue::end(work);
  EXPECT_EQ(DeferredQueue::first_of(parameter_), &work);
}

TEST_F(DeferredQueueTest, AStorageThatWasFreedIsReleasedWithItsLastWork) {
  DeferredWork& first = add({{&parameter_, true}, {&gradient_, false}});
  DeferredWork& second = add({{&gradient_, false}});
  gradient_.dropped = true;
  std::vector<Storage*> released;
  queue_.remove(first, released);
  EXPECT_TRUE(released.empty());
  queue_.remove(second, released);
  EXPECT_EQ(released, std::vector<Storage*>{&gradient_});
  EXPECT_TRUE(queue_.empty());
}

TEST_F(DeferredQueueTest, UnseenIsWhatOnlyChangesFreedStoragesThatNothingLaterReads) {
  DeferredWork& feeds = add({{&gradient_, true}});                      // read by the next one
  add({{&gradient_, false}, {&parameter_, true}});                      // seen
  DeferredWork& unseen = add({{&parameter_, false}, {&other_, true}});  // of a freed storage
  gradient_.dropped = other_.dropped = true;
  EXPECT_EQ(queue_.unseen(), std::vector<DeferredWork*>{&unseen});
  parameter_.dropped = true;
  EXPECT_EQ(queue_.unseen().size(), 3u);
  DeferredQueue::begin(feeds);
  EXPECT_EQ(queue_.unseen().size(), 2u) << "what runs has to end";
}

}  // namespace
}  // namespace bottomless
