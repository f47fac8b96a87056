// Exchanges of several ranks over a LocalNetwork.
// Thread-safety: that of the exchanges.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/rig.h"
#include "ranks/exchange.h"
#include "support/local_network.h"

namespace bottomless {

inline constexpr Bytes kPiece = 64_KiB;

struct Exchanges {
  explicit Exchanges(
      int ranks, const std::function<void(int rank, ExchangeOptions&)>& adjust = [](int, auto&) {},
      const LocalNetworkOptions& options = {})
      : network(ranks, options) {
    for (int i = 0; i < ranks; ++i) {
      ExchangeOptions options{.deadline = std::chrono::seconds(30), .piece_bytes = kPiece};
      adjust(i, options);
      auto started = Exchange::start(network.of(i), std::move(options));
      EXPECT_TRUE(started.ok());
      all.push_back(std::move(started).value());
    }
  }
  Exchange& operator[](int rank) { return *all[static_cast<size_t>(rank)]; }

  LocalNetwork network;
  std::vector<std::unique_ptr<Exchange>> all;
};

inline void with_short_deadline(int rank, ExchangeOptions& options) {
  options.deadline = std::chrono::milliseconds(200);
  options.doing = [rank] { return "thought " + std::to_string(rank); };
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

inline Offered plain(const std::vector<std::byte>& memory, Bytes first = 0) {
  return {.address = memory.data(), .first = first, .bytes = memory.size()};
}

inline bool names(const Result<void>& outcome, const std::string& what) {
  return !outcome.ok() && outcome.error().message.find(what) != std::string::npos;
}

}  // namespace bottomless
