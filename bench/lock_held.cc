// How long the engine's lock is held at the largest step that is recorded: the processor time of every call of an engine by
// one thread (an upper bound of what it holds the lock for; calls that made a schedule, which needs no lock, are left out), and
// the longest that another thread waited for the lock meanwhile, which includes them.
//   lock_held [operations of a step, default 20000]
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "support/memory_store.h"

namespace {

using namespace bottomless;  // NOLINT: of a program

constexpr Bytes kStorage = 64_KiB;
constexpr Bytes kLimit = 2_GiB;  // leaves kMostPlanning for descriptions
constexpr int kSteps = 5;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Longest {
  const char* call;
  std::vector<double> seconds{};

  template <class Body>
  void time(std::atomic<int>& planned, Body body) {
    const int before = planned.load();
    const double start = processor_seconds();
    body();
    const double end = processor_seconds();
    if (planned.load() == before) seconds.push_back(end - start);
  }
  void print() {
    std::sort(seconds.begin(), seconds.end());
    std::printf("%-10s %8zu calls, median %6.1f us, 99.9 %% %6.1f us, most %6.1f us\n", call,
                seconds.size(), 1e6 * seconds[seconds.size() / 2],
                1e6 * seconds[seconds.size() * 999 / 1000], 1e6 * seconds.back());
  }
};

}  // namespace

int main(int count, char** arguments) {
  const size_t operations = count > 1 ? static_cast<size_t>(std::atoi(arguments[1])) : 20000;
  MemoryStore store{MemoryStoreOptions{}};
  std::atomic<int> planned{0};
  auto heap = Heap::create({.limit = kLimit, .frames = {.large = 512_KiB, .small = 64_KiB}});
  if (!heap.ok()) return 1;
  Engine engine({.limit = kLimit, .planning = [&] { ++planned; }}, std::move(heap).value(), store,
                std::make_unique<Farthest>());
  // A quarter of the operations' storages: each is used four times a step.
  std::vector<void*> storages;
  for (size_t i = 0; i < operations / 4; ++i)
    storages.push_back(engine.allocate(kStorage, Kind::parameter, nullptr, "a bench").value());
  std::atomic<bool> done{false};
  double longest_wait = 0;
  std::thread other([&] {
    while (!done.load()) {
      const auto start = std::chrono::steady_clock::now();
      (void)engine.live_storages();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      longest_wait = std::max(longest_wait, took.count());
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  Longest pin{"pin"}, release{"release"}, end_step{"end_step"};
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < operations; ++i) {
      const Need need{.address = storages[i % storages.size()],
                      .bytes = kStorage,
                      .access = i % 3 == 0 ? Access::write : Access::read};
      Pins pins(engine);
      pin.time(planned, [&] { (void)engine.pin(pins, {&need, 1}, "a bench"); });
      release.time(planned, [&] { pins.release(); });
    }
    end_step.time(planned, [&] { engine.end_step(); });
  }
  done = true;
  other.join();
  pin.print();
  release.print();
  if (!end_step.seconds.empty()) end_step.print();
  std::printf("another thread waited at most %.1f us for the lock, %d schedules were made\n",
              1e6 * longest_wait, planned.load());
  for (void* storage : storages) engine.free(storage, nullptr);
  return 0;
}
