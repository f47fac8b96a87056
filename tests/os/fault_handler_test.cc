// Real faults: tests access memory of an engine without pinning it.
#include "os/fault_handler.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "os/managed_memory.h"
#include "support/process.h"
#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr Bytes kBlock = 512_KiB;  // three fit
constexpr int kRounds = kSanitizer ? 400 : 2000;

// Larger than the limit, and filled without a pin.
std::byte* filled_by_faults(Rig& rig, Bytes bytes, uint64_t key) {
  std::byte* at = rig.allocate(bytes);
  write_pattern_unpinned(at, bytes, key);
  return at;
}

TEST(FaultHandler, AnAccessToWhatIsAwayFindsItAndItsThreadsErrno) {
  ManagedMemory memory({});
  Rig& rig = memory.rig();
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  errno = ENOTTY;
  const bool same = has_pattern_unpinned(at, kBlock, 1);
  EXPECT_EQ(errno, ENOTTY);
  EXPECT_TRUE(same);
  EXPECT_EQ(rig.stats().faults, 1u);
  EXPECT_EQ(rig.stats().demand_fetches, 1u);
}

TEST(FaultHandler, AWriteIsKeptWhenTheBlockLeavesAgain) {
  ManagedMemory memory({});
  Rig& rig = memory.rig();
  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  EXPECT_TRUE(has_pattern_unpinned(at, kBlock, 1));  // comes back clean
  write_pattern_unpinned(at, kBlock, 2);             // and is written to: another fault
  EXPECT_EQ(rig.stats().faults, 2u);
  rig.push_out(at);
  EXPECT_TRUE(has_pattern_unpinned(at, kBlock, 2));
}

// All that fits is a quarter of what the threads access, each word its own thread's.
TEST(FaultHandler, ThreadsFaultWhileOthersPin) {
  Random random(181);
  BOTTOMLESS_TRACE_SEED(random);
  ManagedMemory memory(
      {.frames = {.large = 32_KiB, .small = 8_KiB},
       .store = {.order = Order::random, .most_delay_us = 40, .seed = random.seed()}});
  Rig& rig = memory.rig();
  constexpr uint64_t kFaulting = 3, kPages = 8_MiB / 4_KiB;
  std::byte* board = rig.allocate(kPages * 4_KiB);
  const auto word = [&](uint64_t page, uint64_t thread) {
    return board + page * 4_KiB + 64 * thread;
  };
  std::atomic<uint64_t> working{kFaulting};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kFaulting; ++thread) {
    threads.emplace_back([&, thread, random = random.fork(thread)]() mutable {
      std::vector<std::pair<bool, uint64_t>> mine(kPages);
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t page = random.below(kPages);
        auto& [written, value] = mine[page];
        if (written) {
          EXPECT_EQ(load_unpinned(word(page, thread)), value);
        }
        written = true;
        store_unpinned(word(page, thread), value = random.next());
      }
      for (uint64_t page = 0; page < kPages; ++page) {
        if (mine[page].first) {
          EXPECT_EQ(load_unpinned(word(page, thread)), mine[page].second);
        }
      }
      --working;
    });
  }
  threads.emplace_back([&, random = random.fork(99)]() mutable {
    while (working.load() > 0) {
      Pins pins(rig.engine());
      rig.pin(pins, board + random.below(kPages - 64) * 4_KiB, 256_KiB, Access::read);
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(rig.stats().faults, kFaulting * kRounds / 4);
  EXPECT_GT(rig.stats().evictions, 0u);
  EXPECT_GT(rig.stats().written_bytes, 0u);
}

// One access waits for room that an operation holds; the operation's own access to memory that it has is served meanwhile,
// by a second service thread.
TEST(FaultHandler, AnAccessIsServedWhileAnotherOneWaitsForRoom) {
  std::promise<void> waits;
  std::atomic<bool> told{false};
  ManagedMemory memory({.before_waiting = [&] {
    if (!told.exchange(true)) waits.set_value();
  }});
  Rig& rig = memory.rig();
  std::byte* wanted = rig.filled(kBlock, 1);
  std::byte* clean = rig.filled(kBlock, 2);
  rig.push_out(clean);
  rig.push_out(wanted);
  Pins pins(rig.engine());
  rig.pin(pins, clean, kBlock, Access::read);
  rig.allocate_pinned(2 * kBlock, pins);
  ASSERT_FALSE(is_readable(wanted));
  std::thread waiting([&] { EXPECT_TRUE(has_pattern_unpinned(wanted, kBlock, 1)); });
  waits.get_future().wait();
  EXPECT_FALSE(is_writable(clean));
  write_pattern_unpinned(clean, kBlock, 3);
  EXPECT_FALSE(is_readable(wanted)) << "there is still no room for it";
  pins.release();
  waiting.join();
  EXPECT_TRUE(rig.holds(clean, kBlock, 3));
  EXPECT_GE(rig.stats().faults, 2u);
}

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): handlers have no other argument
std::atomic<int> g_others{0}, g_signals{0};
std::atomic<const std::byte*> g_read_by_handler{nullptr};  // NOLINT: likewise
std::atomic<int> g_wrong{0};                               // NOLINT: likewise

void open_page(int, siginfo_t* info, void*) {
  ++g_others;
  const auto page = reinterpret_cast<uintptr_t>(info->si_addr) & ~uintptr_t{4095};
  mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE);
}

TEST(FaultHandler, FaultsElsewhereGoToWhoeverAskedForThem) {
  ManagedMemory memory({});
  Rig& rig = memory.rig();
  struct sigaction action {
  }, before{}, now{};
  action.sa_sigaction = &open_page;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(FaultHandler::sigaction_of_others(SIGSEGV, &action, &before), 0);
  ASSERT_EQ(FaultHandler::sigaction_of_others(SIGSEGV, nullptr, &now), 0);
  EXPECT_EQ(now.sa_sigaction, &open_page);
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *static_cast<volatile char*>(page) = 1;
  EXPECT_EQ(g_others.load(), 1);
  munmap(page, 4096);

  std::byte* at = rig.filled(kBlock, 1);
  rig.push_out(at);
  EXPECT_TRUE(has_pattern_unpinned(at, kBlock, 1)) << "ours are still served";
  EXPECT_EQ(g_others.load(), 1);

  EXPECT_NE(FaultHandler::signal_of_others(SIGSEGV, SIG_IGN), SIG_ERR);
  raise(SIGSEGV);  // is ignored, because it was sent
  ASSERT_EQ(FaultHandler::sigaction_of_others(SIGSEGV, &before, nullptr), 0);
}

// Handlers come and go in one thread while others' faults are served.
TEST(FaultHandler, WhoElseHandlesFaultsChangesWhileTheyHappen) {
  ManagedMemory memory({.frames = {.large = 32_KiB, .small = 8_KiB}});
  Rig& rig = memory.rig();
  std::byte* at = filled_by_faults(rig, 4_MiB, 7);  // twice the limit
  std::atomic<bool> done{false};
  std::thread changing([&] {
    struct sigaction action {
    }, before{};
    action.sa_flags = SA_SIGINFO;
    FaultHandler::sigaction_of_others(SIGSEGV, nullptr, &before);
    while (!done.load()) {
      action.sa_sigaction = &open_page;
      EXPECT_EQ(FaultHandler::sigaction_of_others(SIGSEGV, &action, nullptr), 0);
      EXPECT_EQ(FaultHandler::sigaction_of_others(SIGSEGV, &before, nullptr), 0);
    }
  });
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread)
    threads.emplace_back([&] { EXPECT_TRUE(has_pattern_unpinned(at, 4_MiB, 7)); });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  changing.join();
  EXPECT_GT(rig.stats().faults, 64u);
}

void read_in_handler(int) {
  const int saved = errno;
  const std::byte* at = g_read_by_handler.load();
  const uint64_t turn = static_cast<uint64_t>(++g_signals);
  const Bytes from = turn * 4_KiB % 2_MiB;
  const uint64_t found = load_unpinned(at + from);
  if (!continues_pattern(reinterpret_cast<const std::byte*>(&found), sizeof found, 5, from))
    ++g_wrong;
  errno = saved;
}

TEST(FaultHandler, HandlersOfOtherSignalsFaultAmidFaults) {
  if constexpr (kThreadSanitizer)
    GTEST_SKIP() << "ThreadSanitizer runs handlers with all signals blocked, so they may not fault";
  ManagedMemory memory({.frames = {.large = 32_KiB, .small = 8_KiB}});
  Rig& rig = memory.rig();
  std::byte* by_handler = filled_by_faults(rig, 2_MiB, 5);
  std::byte* at = filled_by_faults(rig, 2_MiB, 6);
  g_read_by_handler.store(by_handler);
  struct sigaction action {
  }, before{};
  action.sa_handler = &read_in_handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  std::atomic<int> working{2};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      do EXPECT_TRUE(has_pattern_unpinned(at, 2_MiB, 6));
      while (g_signals.load() < 50);
      --working;
      while (working.load() >= 0) std::this_thread::yield();  // until nobody signals it any more
    });
  }
  while (working.load() > 0) {
    for (std::thread& thread : threads) pthread_kill(thread.native_handle(), SIGUSR1);
    std::this_thread::yield();
  }
  working.store(-1);
  for (std::thread& thread : threads) thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(g_wrong.load(), 0);
  EXPECT_GT(rig.stats().evictions, 0u);
}

}  // namespace
}  // namespace bottomless
