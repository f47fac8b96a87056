#include "ranks/rendezvous.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/local_network.h"
#include "support/random.h"
#include "support/virtual_clock.h"

namespace bottomless {
namespace {

using Heard = Result<std::vector<std::vector<std::byte>>>;

constexpr std::chrono::nanoseconds kDeadline = std::chrono::milliseconds(200);

// Where a test does not advance the clock nobody is ever late.
std::unique_ptr<Rendezvous> started(LocalNetwork& network, int rank, const Clock& clock,
                                    std::chrono::nanoseconds deadline = kDeadline) {
  auto rendezvous = Rendezvous::start(network.of(rank),
                                      {.purpose = "meet", .deadline = deadline, .clock = &clock});
  EXPECT_TRUE(rendezvous.ok());
  return std::move(rendezvous).value();
}

// Each rank on a thread of its own.
void on_all(LocalNetwork& network, const std::function<void(int, Rendezvous&)>& program) {
  const VirtualClock clock;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < network.ranks(); ++rank) {
    threads.emplace_back([&, rank] { program(rank, *started(network, rank, clock)); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Heard say(Rendezvous& rendezvous, const std::string& text) {
  return rendezvous.meet(std::as_bytes(std::span(text)));
}

bool names(const Heard& heard, const std::string& what) {
  return !heard.ok() && heard.error().message.find(what) != std::string::npos;
}

TEST(Rendezvous, EverybodyHearsWhatEverybodySaysOfAnySize) {
  LocalNetwork network(3, {.most_delay_us = 50});
  const auto text = [](int rank, int turn) {
    const size_t sizes[] = {0, 1, 16384, 100001};
    return std::string(sizes[(rank + turn) % 4], static_cast<char>('a' + turn + rank));
  };
  on_all(network, [&](int rank, Rendezvous& rendezvous) {
    for (int turn = 0; turn < 9; ++turn) {
      const Heard heard = say(rendezvous, text(rank, turn));
      ASSERT_TRUE(heard.ok()) << heard.error().message;
      for (int from = 0; from < 3; ++from)
        ASSERT_EQ(text_of(heard.value()[static_cast<size_t>(from)]), text(from, turn)) << turn;
    }
  });
}

TEST(Rendezvous, ARankThatGoesOnIsWaitedForPastTheDeadline) {
  LocalNetwork network(2);
  VirtualClock clock;
  const auto late = started(network, 0, clock), waiting = started(network, 1, clock);
  std::atomic<bool> waits{false};
  auto heard = std::async(std::launch::async, [&] {
    clock.on_wait([&, me = std::this_thread::get_id()] {
      if (std::this_thread::get_id() == me) waits = true;
    });
    return say(*waiting, "here");
  });
  while (!waits) std::this_thread::yield();
  // Of the signs within a deadline the first has arrived for sure, because a later one has been taken. Each also comes after
  // whatever else its rank was sending, so that no send of either takes longer than a quarter.
  for (int quarter = 0; quarter < 4 * 4; ++quarter) {
    late->heartbeat();
    waiting->heartbeat();
    clock.advance(kDeadline / 4);
  }
  const Heard too = say(*late, "here");
  EXPECT_TRUE(too.ok()) << too.error().message;
  const Heard there = heard.get();
  EXPECT_TRUE(there.ok()) << there.error().message;
}

TEST(Rendezvous, WhoWaitsInVainIsToldWhatTheLateRankIsAt) {
  LocalNetwork network(2);
  VirtualClock clock;
  // With such a deadline its signs are so far apart that it gives none here.
  const auto late = started(network, 0, clock, std::chrono::hours(1000));
  const auto waiting = started(network, 1, clock);
  late->set_phase("step 7, writing the model");
  waiting->set_phase("step 7, done");
  clock.advance_at_next_wait(kDeadline);
  const Heard heard = say(*waiting, "here");
  EXPECT_TRUE(names(heard, "meet: nothing from rank 0 for 200 ms (the deadline)"))
      << (heard.ok() ? "" : heard.error().message);
  EXPECT_TRUE(names(heard, "it is at: step 7, writing the model"));
  EXPECT_TRUE(names(heard, "rank 1 is at: step 7, done"));
  network.kill(1);
}

TEST(Rendezvous, ARankThatStopsIsNamed) {
  LocalNetwork network(2);
  VirtualClock clock;
  const auto late = started(network, 0, clock), waiting = started(network, 1, clock);
  network.stop(0);
  clock.on_wait([&] { clock.advance(kDeadline); });
  EXPECT_TRUE(names(say(*waiting, "here"), "rank 0"));
  network.kill(0);
}

TEST(Rendezvous, ARankThatDiesAtAnySendEndsTheOthersAndIsNamed) {
  for (uint64_t sends = 0, fired = 1; fired != 0; ++sends) {
    LocalNetwork network(3);
    network.kill_after(1, sends);
    on_all(network, [&](int rank, Rendezvous& rendezvous) {
      for (const char* text : {"one", "", "three"}) {
        const Heard heard = say(rendezvous, text);
        if (heard.ok()) continue;
        EXPECT_TRUE(network.killed(1)) << sends;
        if (rank != 1) {
          EXPECT_TRUE(names(heard, "rank")) << heard.error().message;
        }
        network.kill(rank);  // its process ends
        return;
      }
    });
    fired = network.killed(1) ? 1 : 0;
  }
}

TEST(Rendezvous, ARankThatFailsEndsTheOthers) {
  LocalNetwork network(2);
  const VirtualClock clock;
  const auto waiting = started(network, 1, clock);
  std::thread failing([&] {
    try {
      const auto rendezvous = started(network, 0, clock);
      throw std::string("something went wrong");
    } catch (const std::string&) {
    }
    network.kill(0);  // its process ends without an orderly shutdown
  });
  const Heard heard = say(*waiting, "here");
  failing.join();
  EXPECT_TRUE(names(heard, "rank 0 has ended")) << (heard.ok() ? "" : heard.error().message);
}

TEST(Rendezvous, WhoLeavesFirstHasBeenHeard) {
  for (int turn = 0; turn < 20; ++turn) {
    LocalNetwork network(3, {.most_delay_us = 200, .seed = static_cast<uint64_t>(turn)});
    on_all(network, [](int, Rendezvous& rendezvous) {
      const Heard heard = say(rendezvous, "the last word");
      EXPECT_TRUE(heard.ok()) << heard.error().message;
    });
  }
}

}  // namespace
}  // namespace bottomless
