// Random programs against an engine: storages of sizes around every internal boundary are made, written, read in parts,
// copied out, looked at outside operators and freed, by several threads, in limits from the least up, over a disk that
// fails now and then. What they hold is compared with a plain model. A program that goes wrong is made as short as it can
// be and printed; one that hangs is printed by a watchdog, which ends the process.
// BOTTOMLESS_TORTURE=n runs n programs instead of a few; BOTTOMLESS_SEED repeats a run.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/aligned_buffer.h"
#include "support/random.h"

namespace bottomless {
namespace {

constexpr size_t kThreads = 2;
constexpr size_t kSlots = 4;  // of each thread
constexpr auto kLongest = std::chrono::minutes(5);

enum class Act {
  make,
  make_pinned,
  write,
  overwrite,
  read,
  part,
  touch,
  copy,
  ahead,
  free,
  step,
  fail,
  charge
};
constexpr size_t kActs = 13;
constexpr const char* kNames[kActs] = {"make", "make_pinned", "write", "overwrite", "read",
                                       "part", "touch",       "copy",  "ahead",     "free",
                                       "step", "fail",        "charge"};

struct Action {
  size_t thread;
  Act act;
  size_t slot;
  Bytes bytes;  // of what is made or charged
  uint64_t number;
};

struct Program {
  RigOptions options;
  std::vector<Action> actions;
};

std::string printed(const Program& program) {
  std::ostringstream text;
  text << "limit " << program.options.limit << ", large frames " << program.options.frames.large
       << (program.options.eviction == Eviction::eagerly ? ", eagerly" : "")
       << (program.options.movement == Movement::planned ? "" : ", when needed")
       << (program.options.checksums ? ", checksums" : "") << '\n';
  for (const Action& action : program.actions) {
    text << "  thread " << action.thread << ": " << kNames[static_cast<size_t>(action.act)] << ' '
         << action.slot << ' ' << action.bytes << ' ' << action.number << '\n';
  }
  return text.str();
}

Program made(Random& random) {
  Program program;
  RigOptions& options = program.options;
  options.frames.large = 64_KiB << random.below(4);
  options.frames.small = 16_KiB << 2 * random.below(2);
  // The least that anything fits into, and more.
  options.limit = options.frames.large * random.between(6, 12) + random.below(3) * 4096;
  options.eviction = random.one_in(4) ? Eviction::eagerly : Eviction::when_needed;
  options.movement = random.one_in(3) ? Movement::when_needed : Movement::planned;
  options.checksums = random.one_in(3);
  options.store.order = random.one_in(2) ? Order::random : Order::submission;
  options.store.seed = random.next();
  const Bytes large = options.frames.large;
  std::vector<Bytes> boundaries{1, 8, 4096, options.frames.small, large, 2 * large, 128_KiB};
  const size_t count = random.between(20, 120);
  for (size_t i = 0; i < count; ++i) {
    const Bytes boundary = random.pick(boundaries);
    const Bytes bytes = std::max<Bytes>(1, boundary + random.below(3) * 8 - (boundary > 8 ? 8 : 0));
    program.actions.push_back({random.below(kThreads), static_cast<Act>(random.below(kActs)),
                               random.below(kSlots), bytes, random.next() >> 8});
  }
  return program;
}

// That all programs together did.
struct Seen {
  uint64_t evictions = 0, fetches = 0, schedules = 0, faults = 0;
};
Seen seen;  // NOLINT: of this test

// Runs a program; why it went wrong, if it did.
class Run {
 public:
  explicit Run(const Program& program) : program_(program), rig_(program.options) {}

  std::optional<std::string> outcome() {
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([this, t] {
        for (const Action& action : program_.actions) {
          if (action.thread == t) act(action, slots_[t][action.slot]);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    rig_.store().fail(std::nullopt);
    for (auto& slots : slots_) {
      for (Slot& slot : slots) {
        if (slot.at == nullptr) continue;
        if (slot.filled) check(slot, 0, slot.bytes);
        rig_.free(slot.at);
      }
    }
    if (charged_ > 0) rig_.engine().discharge(charged_);
    const EngineStats stats = rig_.stats();
    seen.evictions += stats.evictions;
    seen.fetches += stats.demand_fetches + stats.prefetches;
    seen.schedules += stats.schedules_made;
    seen.faults += faults_;
    return failure_;
  }

 private:
  struct Slot {
    std::byte* at = nullptr;
    Bytes bytes = 0;
    uint64_t key = 0;
    bool filled = false;
  };

  void wrong(const std::string& what) {
    std::lock_guard lock(mutex_);
    if (!failure_) failure_ = what;
  }
  // The disk may have been told to fail: once that is over it must go. There may be too little memory: that is no error.
  bool insist(const char* what, const std::function<Result<void>()>& attempt) {
    Result<void> outcome = attempt();
    if (outcome.ok()) return true;
    if (outcome.error().code == Code::no_memory) return false;
    ++faults_;
    rig_.store().fail(std::nullopt);
    for (int i = 0; i < 3 && !outcome.ok(); ++i) outcome = attempt();
    if (!outcome.ok() && outcome.error().code != Code::no_memory)
      wrong(std::string(what) + ": " + outcome.error().message);
    return outcome.ok();
  }
  bool pinned(const char* what, Pins& pins, const Need& need) {
    return insist(what, [&] { return rig_.engine().pin(pins, {&need, 1}, what); });
  }
  void check(const Slot& slot, Bytes from, Bytes bytes) {
    Pins pins(rig_.engine());
    if (!pinned("read", pins, {.address = slot.at + from, .bytes = bytes})) return;
    if (!same(slot.at + from, slot, from, bytes)) wrong("read: other bytes than were written");
  }
  static bool same(const std::byte* bytes, const Slot& slot, Bytes from, Bytes count) {
    return from % 8 == 0 && (count % 8 == 0 || from + count == slot.bytes)
               ? continues_pattern(bytes, count, slot.key, from)
               : true;
  }
  void fill(Slot& slot, uint64_t key, bool overwritten) {
    Pins pins(rig_.engine());
    const Need need{.address = slot.at,
                    .bytes = slot.bytes,
                    .access = Access::write,
                    .overwritten = overwritten};
    if (!pinned("write", pins, need)) return;
    write_pattern(slot.at, slot.bytes, key);
    slot.key = key;
    slot.filled = true;
    pins.done();
  }
  void make(const Action& action, Slot& slot, bool pinned) {
    if (slot.at != nullptr) return;
    Pins pins(rig_.engine());
    void* at = nullptr;
    const bool made = insist("make", [&]() -> Result<void> {
      Result<void*> got =
          rig_.engine().allocate(action.bytes, Kind::other, pinned ? &pins : nullptr, "make");
      if (!got.ok()) return std::move(got).error();
      at = got.value();
      return {};
    });
    if (!made) return;
    slot = {static_cast<std::byte*>(at), action.bytes, action.number, pinned};
    if (pinned) write_pattern(slot.at, slot.bytes, slot.key);
  }
  void copy(const Slot& slot) {
    AlignedBuffer room(Engine::bypass_buffer_bytes(slot.bytes));
    for (Bytes done = 0; done < slot.bytes;) {
      Bytes part = 0;
      const bool copied = insist("copy", [&]() -> Result<void> {
        Result<Bytes> got =
            rig_.engine().read_bypassing_heap(slot.at + done, slot.bytes - done, room.span());
        if (!got.ok()) return std::move(got).error();
        part = got.value();
        return {};
      });
      if (!copied) return;
      if (!same(room.data(), slot, done, part)) wrong("copy: other bytes than were written");
      done += part;
    }
  }
  void act(const Action& action, Slot& slot) {
    if (action.act == Act::make || action.act == Act::make_pinned)
      return make(action, slot, action.act == Act::make_pinned);
    if (action.act == Act::step) return rig_.engine().end_step();
    if (action.act == Act::fail)
      return rig_.store().fail(
          FailAt{.n = action.number % 4,
                 .operation = action.number % 3 == 0 ? Operation::write : Operation::read});
    if (action.act == Act::charge) {
      if (rig_.engine().charge(action.bytes, nullptr, "charge").ok()) charged_ += action.bytes;
      return;
    }
    if (slot.at == nullptr) return;
    const Bytes from = action.number % slot.bytes / 8 * 8;
    switch (action.act) {
      case Act::write:
      case Act::overwrite:
        return fill(slot, action.number, action.act == Act::overwrite);
      case Act::free:
        rig_.free(slot.at);
        slot = {};
        return;
      case Act::touch:
        (void)insist("touch", [&]() -> Result<void> {
          const Result<bool> touched = rig_.engine().touch(slot.at + from, Access::read);
          if (!touched.ok()) return touched.error();
          if (!touched.value()) wrong("touch: it is not known");
          return {};
        });
        return;
      case Act::ahead: {
        const Need need{.address = slot.at, .bytes = slot.bytes};
        return rig_.engine().prefetch({&need, 1});
      }
      case Act::read:
        if (slot.filled) check(slot, 0, slot.bytes);
        return;
      case Act::part:
        if (slot.filled) check(slot, from, slot.bytes - from);
        return;
      default:
        if (slot.filled) copy(slot);
    }
  }

  const Program& program_;
  Rig rig_;
  Slot slots_[kThreads][kSlots];
  std::atomic<Bytes> charged_{0};
  std::atomic<uint64_t> faults_{0};  // of the disk, that were heard of
  std::mutex mutex_;
  std::optional<std::string> failure_;
};

// Prints what is being run and ends the process when that takes too long.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  std::optional<std::string> run(const Program& program) {
    {
      std::lock_guard lock(mutex_);
      running_ = &program;
      since_ = std::chrono::steady_clock::now();
    }
    const std::optional<std::string> outcome = Run(program).outcome();
    std::lock_guard lock(mutex_);
    running_ = nullptr;
    return outcome;
  }

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      changed_.wait_for(lock, std::chrono::seconds(1));
      if (running_ == nullptr || std::chrono::steady_clock::now() - since_ < kLongest) continue;
      std::fprintf(stderr, "this program hangs:\n%s", printed(*running_).c_str());
      std::abort();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const Program* running_ = nullptr;
  std::chrono::steady_clock::time_point since_;
  bool ended_ = false;
  std::thread thread_;
};

// Leaves out actions as long as it still goes wrong; several times, since threads make that a matter of chance.
Program shortened(Program program, Watchdog& watchdog) {
  const auto goes_wrong = [&](const Program& candidate) {
    for (int i = 0; i < 5; ++i) {
      if (watchdog.run(candidate)) return true;
    }
    return false;
  };
  for (size_t length = program.actions.size() / 2; length > 0; length /= 2) {
    for (size_t at = 0; at + length <= program.actions.size();) {
      Program candidate = program;
      const auto first = candidate.actions.begin() + static_cast<std::ptrdiff_t>(at);
      candidate.actions.erase(first, first + static_cast<std::ptrdiff_t>(length));
      if (goes_wrong(candidate)) {
        program = std::move(candidate);
      } else {
        at += length;
      }
    }
  }
  return program;
}

TEST(Torture, RandomProgramsFindWhatTheyWrote) {
  Random random(17);
  BOTTOMLESS_TRACE_SEED(random);
  const char* wanted = std::getenv("BOTTOMLESS_TORTURE");
  const long programs = wanted != nullptr ? std::atol(wanted) : 300;
  Watchdog watchdog;
  for (long i = 0; i < programs; ++i) {
    const Program program = made(random);
    const std::optional<std::string> failure = watchdog.run(program);
    if (failure)
      FAIL() << "program " << i << ": " << *failure << '\n'
             << printed(shortened(program, watchdog));
    if (HasFailure()) FAIL() << "program " << i << '\n' << printed(program);
  }
  std::printf("%lu evictions, %lu fetches, %lu schedules, %lu faults of the disk\n", seen.evictions,
              seen.fetches, seen.schedules, seen.faults);
  for (const uint64_t count : {seen.evictions, seen.fetches, seen.schedules, seen.faults})
    EXPECT_GT(count, static_cast<uint64_t>(programs) / 20) << "the test tests nothing";
}

}  // namespace
}  // namespace bottomless
