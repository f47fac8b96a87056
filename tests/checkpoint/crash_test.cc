// Killed at any moment, a run that saves leaves a complete checkpoint, the last that it was told of or a later one.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "state.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

// What step n holds, for both processes.
State state_at(uint64_t step, const Random& random) {
  Random of_step = random.fork(step);
  return random_state(step, 8, 4000, of_step);
}

// In memory that both processes see.
struct Shared {
  std::atomic<uint64_t> committed;
};

bool is_running(pid_t child) {
  siginfo_t ended{};
  return waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

[[noreturn]] void save_for_ever(const std::filesystem::path& directory, uint64_t first,
                                const Random& random, Shared& shared) {
  const auto files = make_files();
  const Result<Removed> removed = remove_leftovers(*files, directory);
  if (!removed.ok() && removed.error().code != Code::not_found) _exit(1);
  for (uint64_t step = first;; ++step) {
    const Result<Removed> saved = save(*files, directory, state_at(step, random), 2);
    if (!saved.ok() || saved.value().failed) _exit(2);
    shared.committed = step;
  }
}

TEST(Crash, AtAnyMomentLeavesACompleteCheckpoint) {
  Random random(85);
  BOTTOMLESS_TRACE_SEED(random);
  const TemporaryDirectory parent;
  const auto directory = parent.path() / "run";
  const auto files = make_files();
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared{};
  uint64_t last = 0, moved_on = 0;
  for (int round = 0; round < 40; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_for_ever(directory, last + 1, random, shared);
    // Every other one has saved something, however long that takes.
    while (round % 2 == 1 && shared.committed == last && is_running(child))
      std::this_thread::yield();
    std::this_thread::sleep_for(
        std::chrono::microseconds(random.below(round % 2 == 0 ? 20'000 : 100'000)));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself: " << WEXITSTATUS(status);

    const Result<State> loaded = load(*files, directory);
    if (!loaded.ok()) {
      ASSERT_EQ(loaded.error().code, Code::not_found) << loaded.error().message;
      ASSERT_EQ(shared.committed, 0u) << "a checkpoint was lost";
      continue;
    }
    const uint64_t step = loaded.value().step;
    EXPECT_GE(step, shared.committed);
    EXPECT_LE(step, shared.committed + 1) << "the last that was begun";
    EXPECT_EQ(loaded.value(), state_at(step, random));
    moved_on += step > last;
    last = step;
    shared.committed = step;
  }
  EXPECT_GE(moved_on, 20u) << "something was saved, and then not there";
  ::munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace bottomless
