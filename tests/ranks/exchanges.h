// Exchanges of several ranks over a LocalNetwork, each with a clock that stands still unless the test says otherwise: where
// a test does not, whoever waits for a deadline waits for ever.
// Thread-safety: that of the exchanges.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "ranks/exchange.h"
#include "support/local_network.h"
#include "support/virtual_clock.h"

namespace bottomless {

inline constexpr Bytes kPiece = 64_KiB;
inline constexpr std::chrono::milliseconds kDeadline(200);

inline Offered plain(const std::vector<std::byte>& memory, Bytes first = 0) {
  return {.address = memory.data(), .first = first, .bytes = memory.size()};
}

struct Exchanges {
  explicit Exchanges(
      int ranks, const std::function<void(int rank, ExchangeOptions&)>& adjust = [](int, auto&) {},
      const LocalNetworkOptions& options = {})
      : network(ranks, options), clocks(static_cast<size_t>(ranks)) {
    for (int i = 0; i < ranks; ++i) {
      ExchangeOptions options{.deadline = kDeadline, .piece_bytes = kPiece, .clock = &clock(i)};
      adjust(i, options);
      auto started = Exchange::start(network.of(i), std::move(options));
      EXPECT_TRUE(started.ok());
      all.push_back(std::move(started).value());
    }
  }
  Exchange& operator[](int rank) { return *all[static_cast<size_t>(rank)]; }
  VirtualClock& clock(int rank) { return clocks[static_cast<size_t>(rank)]; }

  // What `by` has asked of `of` has been taken there, and no send to it is under way: for that one, too, the deadline would
  // pass when the clock of `by` goes on. For others than `of` the test knows that there is none.
  void wait_for_io(int by, int of) {
    constexpr Exchange::Key kMarker = 99;
    (*this)[of].offer(kMarker, 0, plain(marker));
    std::vector<std::byte> into(1);
    EXPECT_TRUE((*this)[by].pull_now({.from = of, .key = kMarker, .into = into}).ok());
    EXPECT_TRUE((*this)[by].tell(of, {}).ok());  // comes after all that is being sent
  }
  // From now on every deadline of this rank passes.
  void let_time_pass(int rank) {
    clock(rank).on_wait([this, rank] { clock(rank).advance(kDeadline); });
  }
  void let_time_pass() {
    for (int i = 0; i < network.ranks(); ++i) let_time_pass(i);
  }

  LocalNetwork network;
  std::deque<VirtualClock> clocks;
  std::vector<std::byte> marker = std::vector<std::byte>(1);
  std::vector<std::unique_ptr<Exchange>> all;
};

inline void with_thoughts(int rank, ExchangeOptions& options) {
  options.phase = [rank] { return "thought " + std::to_string(rank); };
}

// A pull whose outcome can be waited for.
inline std::future<Result<void>> start_pull(Exchange& exchange, Exchange::Pull pull,
                                            uint64_t* id = nullptr) {
  auto promise = std::make_shared<std::promise<Result<void>>>();
  pull.done = [promise](Result<void> outcome) { promise->set_value(std::move(outcome)); };
  const uint64_t given = exchange.pull(std::move(pull));
  if (id != nullptr) *id = given;
  return promise->get_future();
}

inline std::vector<std::byte> pattern(Bytes bytes, uint64_t key) {
  std::vector<std::byte> all(bytes);
  write_pattern(all.data(), bytes, key);
  return all;
}

inline bool names(const Result<void>& outcome, const std::string& what) {
  return !outcome.ok() && outcome.error().message.find(what) != std::string::npos;
}

}  // namespace bottomless
