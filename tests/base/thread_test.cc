#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

Thread started(std::string name, std::function<void()> body) {
  Result<Thread> thread = Thread::start(std::move(name), std::move(body));
  EXPECT_TRUE(thread.ok()) << thread.error().message;
  return std::move(thread).value();
}

TEST(Thread, CarriesItsNameCutToWhatTheKernelKeeps) {
  std::string seen;
  started("bl-a-very-long-name", [&] {
    char name[16];
    pthread_getname_np(pthread_self(), name, sizeof name);
    seen = name;
  }).join();
  EXPECT_EQ(seen, "bl-a-very-long-");
}

TEST(Thread, DestructorJoins) {
  bool finished = false;
  {
    const Thread thread = started("bl-join", [&] { finished = true; });
  }
  EXPECT_TRUE(finished);
}

TEST(Thread, JoiningTwiceOrNothingIsHarmless) {
  Thread thread = started("bl-twice", [] {});
  thread.join();
  thread.join();
  Thread none;
  none.join();
}

TEST(Thread, AssignmentJoinsTheThreadThatIsReplaced) {
  bool first = false;
  bool second = false;
  Thread thread = started("bl-first", [&] { first = true; });
  thread = started("bl-second", [&] { second = true; });
  EXPECT_TRUE(first);
  thread.join();
  EXPECT_TRUE(second);
}

TEST(Thread, BlocksEverySignalAndLeavesTheStartersMaskAlone) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  sigset_t inside;
  started("bl-signals", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM, SIGPROF, SIGSEGV, SIGPIPE}) {
    EXPECT_EQ(sigismember(&inside, signal), 1) << signal;
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST(Thread, HasTheSmallStackThatTheLimitIsChargedFor) {
  size_t bytes = 0;
  started("bl-stack", [&] {
    pthread_attr_t attributes;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstacksize(&attributes, &bytes);
    pthread_attr_destroy(&attributes);
  }).join();
  EXPECT_GE(bytes, Thread::kStackBytes);
  if constexpr (!kSanitizer) {  // a sanitizer makes every stack larger for itself
    EXPECT_LE(bytes, Thread::kStackBytes + 64_KiB);
  }
}

TEST(Thread, BodyIsDestroyedWithTheThread) {
  auto token = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = token;
  started("bl-body", [token = std::move(token)] { EXPECT_EQ(*token, 1); }).join();
  EXPECT_TRUE(watch.expired());
}

TEST(CondVar, HandsTheLockBackAndForth) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  const Thread other = started("bl-turns", [&] {
    for (int i = 0; i < 100; ++i) {
      MutexLock lock(mutex);
      while (turn % 2 == 0) changed.wait(mutex);
      ++turn;
      changed.notify_one();
    }
  });
  for (int i = 0; i < 100; ++i) {
    MutexLock lock(mutex);
    while (turn % 2 == 1) changed.wait(mutex);
    ++turn;
    changed.notify_one();
  }
  MutexLock lock(mutex);
  while (turn < 200) changed.wait(mutex);
  EXPECT_EQ(turn, 200);
}

}  // namespace
}  // namespace bottomless
