// Ranks that meet: each says something, and goes on when it has heard what all of them say. For what is small and seldom, between
// steps or before the first one. A rank may have much to do before it comes: it is waited for as long as it says that it goes on, and
// for the deadline from then on. Who waits in vain is told what the late rank says that it is at.
// Thread-safety: meet() by one thread at a time; set_phase() and heartbeat() by one, too, which may be another.
// Lifetime: the transport outlives it, and nobody else uses that.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "ranks/exchange.h"
#include "ranks/transport.h"

namespace bottomless {

struct RendezvousOptions {
  std::string purpose;  // begins every error: "train on 2 ranks"
  std::chrono::nanoseconds deadline = std::chrono::minutes(10);
  const Clock* clock = &Clock::steady();  // of the deadline
};

class Rendezvous {
 public:
  static Result<std::unique_ptr<Rendezvous>> start(Transport& transport, RendezvousOptions options);
  // Stays until all have heard what was said last. Where something went wrong (a rendezvous has failed, an exception is on its
  // way) it does not, and for the others this rank has ended.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // What its buffers and threads take.
  static Bytes own_memory(int ranks);

  // What this rank is at, for those who wait for it: "step 7, writing the model".
  void set_phase(std::string what);
  // Whoever waits for this rank goes on waiting. May be called as often as one likes.
  void heartbeat();

  // All ranks call it equally often. What each has said, by rank.
  Result<std::vector<std::vector<std::byte>>> meet(std::span<const std::byte> own);

 private:
  struct Other {
    uint64_t came = 0;                   // to so many meetings
    std::array<uint64_t, 2> bytes = {};  // said in the last one of even and of odd number
    uint64_t signs = 0;                  // that it goes on
  };

  explicit Rendezvous(RendezvousOptions options) : options_(std::move(options)) {}
  void on_notice(int from, const Notice& notice);
  Result<void> wait_for_all();
  int late() const;  // the first that has not come to this rendezvous; -1: none
  uint64_t signs_of(int rank) const;

  const RendezvousOptions options_;
  uint64_t number_ = 0;
  std::array<std::vector<std::byte>, 2> said_;  // here, in the meetings of even and of odd number
  bool failed_ = false;
  Clock::TimePoint last_sign_ = {};
  mutable Mutex mutex_;
  std::string at_ BOTTOMLESS_GUARDED_BY(mutex_) = "beginning";
  std::vector<Other> others_ BOTTOMLESS_GUARDED_BY(mutex_);  // by rank, this one included
  std::unique_ptr<Exchange> exchange_;                       // the first to end: it calls the above
};

}  // namespace bottomless
