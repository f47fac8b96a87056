#include "ranks/meeting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/local_network.h"
#include "support/random.h"

namespace bottomless {
namespace {

using Clock = std::chrono::steady_clock;
using Heard = Result<std::vector<std::vector<std::byte>>>;

constexpr auto kShort = std::chrono::milliseconds(200);
constexpr auto kLong = std::chrono::seconds(30);

std::unique_ptr<Meeting> started(LocalNetwork& network, int rank,
                                 std::chrono::nanoseconds deadline) {
  auto meeting = Meeting::start(network.of(rank), {.purpose = "meet", .deadline = deadline});
  EXPECT_TRUE(meeting.ok());
  return std::move(meeting).value();
}

// Each rank on a thread of its own.
void on_all(LocalNetwork& network, std::chrono::nanoseconds deadline,
            const std::function<void(int, Meeting&)>& program) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < network.ranks(); ++rank) {
    threads.emplace_back([&, rank] { program(rank, *started(network, rank, deadline)); });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Heard say(Meeting& meeting, const std::string& text) {
  return meeting.meet(std::as_bytes(std::span(text)));
}

bool names(const Heard& heard, const std::string& what) {
  return !heard.ok() && heard.error().message.find(what) != std::string::npos;
}

TEST(Meeting, EverybodyHearsWhatEverybodySaysOfAnySize) {
  LocalNetwork network(3, {.most_delay_us = 50});
  const auto text = [](int rank, int turn) {
    const size_t sizes[] = {0, 1, 16384, 100001};
    return std::string(sizes[(rank + turn) % 4], static_cast<char>('a' + turn + rank));
  };
  on_all(network, kLong, [&](int rank, Meeting& meeting) {
    for (int turn = 0; turn < 9; ++turn) {
      const Heard heard = say(meeting, text(rank, turn));
      ASSERT_TRUE(heard.ok()) << heard.error().message;
      for (int from = 0; from < 3; ++from)
        ASSERT_EQ(text_of(heard.value()[static_cast<size_t>(from)]), text(from, turn)) << turn;
    }
  });
}

TEST(Meeting, ARankThatGoesOnIsWaitedForPastTheDeadline) {
  LocalNetwork network(2);
  on_all(network, kShort, [](int rank, Meeting& meeting) {
    const auto until = Clock::now() + 4 * kShort;
    while (rank == 0 && Clock::now() < until) meeting.goes_on();
    const Heard heard = say(meeting, "here");
    EXPECT_TRUE(heard.ok()) << heard.error().message;
  });
}

TEST(Meeting, WhoWaitsInVainIsToldWhatTheLateRankIsAt) {
  LocalNetwork network(2);
  const auto late = started(network, 0, kLong), waiting = started(network, 1, kShort);
  late->is_at("step 7, writing the model");
  waiting->is_at("step 7, done");
  const Heard heard = say(*waiting, "here");
  EXPECT_TRUE(names(heard, "meet: nothing from rank 0 for 200 ms (the deadline)"))
      << (heard.ok() ? "" : heard.error().message);
  EXPECT_TRUE(names(heard, "it is at: step 7, writing the model"));
  EXPECT_TRUE(names(heard, "rank 1 is at: step 7, done"));
  network.kill(1);
}

TEST(Meeting, ARankThatStopsIsNamed) {
  LocalNetwork network(2);
  const auto late = started(network, 0, kShort), waiting = started(network, 1, kShort);
  network.stop(0);
  EXPECT_TRUE(names(say(*waiting, "here"), "rank 0"));
  network.kill(0);
}

TEST(Meeting, ARankThatDiesAtAnySendEndsTheOthersAndIsNamed) {
  for (uint64_t sends = 0, fired = 1; fired != 0; ++sends) {
    LocalNetwork network(3);
    network.kill_after(1, sends);
    on_all(network, kLong, [&](int rank, Meeting& meeting) {
      for (const char* text : {"one", "", "three"}) {
        const Heard heard = say(meeting, text);
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

TEST(Meeting, ARankThatFailsEndsTheOthers) {
  LocalNetwork network(2);
  const auto waiting = started(network, 1, kLong);
  std::thread failing([&] {
    try {
      const auto meeting = started(network, 0, kLong);
      throw std::string("something went wrong");
    } catch (const std::string&) {
    }
    network.kill(0);  // without a farewell its process ends
  });
  const Heard heard = say(*waiting, "here");
  failing.join();
  EXPECT_TRUE(names(heard, "rank 0 has ended")) << (heard.ok() ? "" : heard.error().message);
}

TEST(Meeting, WhoLeavesFirstHasBeenHeard) {
  for (int turn = 0; turn < 20; ++turn) {
    LocalNetwork network(3, {.most_delay_us = 200, .seed = static_cast<uint64_t>(turn)});
    on_all(network, kLong, [](int, Meeting& meeting) {
      const Heard heard = say(meeting, "the last word");
      EXPECT_TRUE(heard.ok()) << heard.error().message;
    });
  }
}

}  // namespace
}  // namespace bottomless
