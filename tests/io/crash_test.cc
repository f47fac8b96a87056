// Killed at any moment, a run leaves nothing behind; and runs that share a
// directory do not meet.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "io/disk_store.h"
#include "support/aligned_buffer.h"
#include "support/completions.h"
#include "support/random.h"
#include "support/sanitizer.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

// Writes and reads back extents of its own for ever, or until something is not
// as it was written.
[[noreturn]] void churn(const std::filesystem::path& directory, uint64_t key) {
  Result<std::unique_ptr<DiskStore>> opened = DiskStore::open({.directories = {directory}});
  if (!opened.ok()) _exit(1);
  DiskStore& store = *opened.value();
  AlignedBuffer buffer(256_KiB);
  for (uint64_t round = key;; round += 1000) {
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < 8; ++i) {
      Result<Extent> extent = store.allocate(buffer.size());
      if (!extent.ok()) _exit(2);
      extents.push_back(extent.value());
      buffer.fill(round + i);
      Completions written;
      store.write(extent.value(), {buffer.span()}, Priority::demand, written.expect());
      written.wait_for_all();
      if (!written.outcome(0).ok()) _exit(3);
    }
    for (uint64_t i = 0; i < extents.size(); ++i) {
      Completions read;
      store.read(extents[i], {buffer.span()}, Priority::demand, read.expect());
      read.wait_for_all();
      if (!read.outcome(0).ok() || buffer.mismatch(round + i) != buffer.size()) _exit(4);
      store.free(extents[i]);
    }
  }
}

pid_t start(const std::filesystem::path& directory, uint64_t key) {
  const pid_t child = fork();
  if (child == 0) churn(directory, key);
  return child;
}

void sleep_for(uint64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// How it died: by the signal, or with the code of what went wrong.
void kill_and_expect_it_was_well(pid_t child) {
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);
}

TEST(Crash, AtAnyMomentLeavesNothingBehind) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();  // they do not like threads in forked
                                       // children
  Random random(83);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory directory;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = start(directory.path(), 1);
    sleep_for(random.below(round % 2 == 0 ? 3000 : 30000));
    EXPECT_EQ(directory.entries(), 0u) << "nothing to see from outside, from the first moment on";
    kill_and_expect_it_was_well(child);
    ASSERT_EQ(directory.entries(), 0u);
  }
}

TEST(Crash, OfOneRunIsNothingToOthersInTheSameDirectory) {
  BOTTOMLESS_SKIP_UNDER_SANITIZERS();
  Random random(84);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory directory;
  const pid_t lasting = start(directory.path(), 500'000'000);
  for (uint64_t round = 0; round < 10; ++round) {
    const pid_t one = start(directory.path(), round);
    const pid_t other = start(directory.path(), 1'000'000'000 + round);
    sleep_for(random.between(1000, 40000));
    kill_and_expect_it_was_well(one);
    sleep_for(random.below(5000));
    kill_and_expect_it_was_well(other);
  }
  kill_and_expect_it_was_well(lasting);
  EXPECT_EQ(directory.entries(), 0u);
}

}  // namespace
}  // namespace bottomless
