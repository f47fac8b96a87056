// torch has a factory for Gloo's process groups in Python only; here its class is used as it is. See gloo_declarations.
#include <bottomless/shard.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "os/started_rank.h"
#include "torch/errors.h"

namespace bottomless {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

[[noreturn]] void refuse_to_join(const std::string& what) {
  throw_error({Code::invalid_argument, "join the ranks: " + what});
}

std::optional<std::string> text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? std::optional<std::string>(value) : std::nullopt;
}

template <class Value>
Value accepted(Result<Value> found) {
  if (!found.ok()) refuse_to_join(found.error().message);
  return std::move(found).value();
}

struct Place {
  int rank = 0;
  int ranks = 1;
  std::string address;  // where rank 0 is
  int port = c10d::TCPStoreOptions::kDefaultPort;
};

Place place_from_environment() {
  const std::optional<StartedRank> started = accepted(started_rank());
  if (!started)
    refuse_to_join(
        "the environment does not say which rank this is (RANK and WORLD_SIZE, "
        "OMPI_COMM_WORLD_RANK and _SIZE, or PMI_RANK and PMI_SIZE); start the program by torchrun "
        "or mpirun");
  Place place{.rank = started->rank, .ranks = started->ranks};
  if (const std::optional<std::string> address = text_of("MASTER_ADDR")) {
    place.address = *address;
  } else if (started->local_ranks == place.ranks) {
    place.address = "127.0.0.1";
  } else {
    refuse_to_join(
        "set MASTER_ADDR to the address of rank 0's machine (mpirun -x MASTER_ADDR=...)");
  }
  place.port = accepted(number_in_environment("MASTER_PORT")).value_or(place.port);
  if (place.port == 0 || place.port > UINT16_MAX)
    refuse_to_join("MASTER_PORT=" + std::to_string(place.port) + " is not a port");
  return place;
}

Store open_store(const Place& place, std::chrono::milliseconds deadline) {
  const std::string where = place.address + ":" + std::to_string(place.port);
  const bool is_torchruns = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = place.rank == 0 && !is_torchruns;
  options.waitWorkers = false;
  options.timeout = deadline;
  options.multiTenant = true;
  try {
    Store store = c10::make_intrusive<c10d::TCPStore>(place.address, options);
    if (!is_torchruns) return store;
    const std::string attempt = text_of("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return c10::make_intrusive<c10d::PrefixStore>("/worker/attempt_" + attempt, std::move(store));
  } catch (const std::exception& error) {
    const std::string why = error.what();
    throw_error({Code::io, "join the ranks: rank " + std::to_string(place.rank) +
                               " cannot reach rank 0's store at " + where +
                               " (MASTER_ADDR, MASTER_PORT): " + why.substr(0, why.find('\n'))});
  }
}

// Gloo would wait as long as its own timeout, without saying for whom.
void wait_for_all(c10d::Store& store, const Place& place, std::chrono::milliseconds deadline) {
  const auto key = [](int rank) { return "here/" + std::to_string(rank); };
  std::vector<std::string> keys;
  for (int rank = 0; rank < place.ranks; ++rank) keys.push_back(key(rank));
  try {
    store.set(key(place.rank), std::vector<uint8_t>{1});
    store.wait(keys, deadline);
  } catch (const std::exception& error) {
    const std::string why = error.what();
    std::string missing;
    try {
      for (int rank = 0; rank < place.ranks; ++rank)
        if (!store.check({key(rank)})) missing += " " + std::to_string(rank);
    } catch (const std::exception&) {
      missing = " unknown, as the store is gone";
    }
    throw_error({Code::io, "join the ranks: rank " + std::to_string(place.rank) + " of " +
                               std::to_string(place.ranks) + " waited " +
                               std::to_string(deadline.count() / 1000) +
                               " s for all others; missing:" + missing + " (" +
                               why.substr(0, why.find('\n')) + ")"});
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> join_ranks(std::chrono::seconds deadline) {
  static std::atomic<int> calls = 0;  // all ranks count the same, if they join equally often
  const Place place = place_from_environment();
  const Store store = c10::make_intrusive<c10d::PrefixStore>(
      "bottomless/" + std::to_string(calls.fetch_add(1, std::memory_order_relaxed)),
      open_store(place, deadline));
  wait_for_all(*store, place, deadline);
  // A stream may be idle for as long as a step takes. Whoever waits for it has a deadline of its own.
  constexpr std::chrono::hours kYear{365 * 24};
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      store, place.rank, place.ranks, c10d::ProcessGroupGloo::Options::create_default(kYear));
}

}  // namespace bottomless
