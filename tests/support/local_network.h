// Ranks in one process: a Transport for each, over which a send returns when its receiver has taken it, as over Gloo. Like
// there, closing ends a rank's own calls only: others who send to it wait. On request ranks die, hang or are slow.
// Thread-safety: see Transport; the controls from any thread.
// Lifetime: outlives the users of its transports.
#pragma once
#include <bottomless/bytes.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ranks/transport.h"

namespace bottomless {

struct LocalNetworkOptions {
  unsigned most_delay_us = 0;  // of one call in four, at random
  uint64_t seed = 1;
};

class LocalNetwork {
 public:
  explicit LocalNetwork(int ranks, const LocalNetworkOptions& options = {});
  ~LocalNetwork();

  Transport& of(int rank);
  int ranks() const { return static_cast<int>(ranks_.size()); }

  // Every call of this rank and every call that concerns it fails, as when its process has ended.
  void kill(int rank);
  // Nothing of this rank moves any more, as when its process has been stopped.
  void stop(int rank);
  // The same, but only when it has made so many more sends.
  void kill_after(int rank, uint64_t sends);
  void stop_after(int rank, uint64_t sends);
  bool killed(int rank) const;
  bool stopped(int rank) const;
  // Waits until a send hangs because a rank has been stopped.
  void wait_until_a_send_hangs();

  Bytes sent_bytes(int from) const;  // all that was taken
  Bytes received_bytes(int to) const;

 private:
  class End;
  enum class State { free, posted, copying, taken };
  struct Link {  // from one rank to another
    State state = State::free;
    std::span<const std::byte> bytes;
    Bytes taken_bytes = 0;
  };
  struct Rank {
    std::unique_ptr<End> end;
    bool dead = false;
    bool stopped = false;
    bool closed = false;
    std::optional<uint64_t> dies_after, stops_after;
  };

  Link& link(int from, int to) { return links_[static_cast<size_t>(from * ranks() + to)]; }
  const Rank& at(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  // With the lock held: why a call of `rank` that concerns `peer` cannot go on.
  std::optional<Error> failure(int rank, int peer) const;
  void count_send(int rank);
  void dawdle();
  Result<void> send(int from, int to, std::span<const std::byte> bytes);
  Result<void> receive(int to, int from, std::span<std::byte> into);
  void close(int rank);

  const LocalNetworkOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable send_hangs_;  // apart: sends that hang must not wake each other
  uint64_t calls_ = 0;
  unsigned hanging_sends_ = 0;
  std::vector<Rank> ranks_;
  std::vector<Link> links_;
};

}  // namespace bottomless
