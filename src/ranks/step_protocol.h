// Which step, which sum and which end each rank of a sharded model has come to, and how one waits for the others.
// Thread-safety: on_notice() from threads of the exchange, everything else from one thread at a time.
// Lifetime: the reduction and, from start() on, the exchange outlive it.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "ranks/exchange.h"
#include "ranks/reduction.h"
#include "ranks/shard_protocol.h"

namespace bottomless {

class StepProtocol {
 public:
  StepProtocol(int rank, int ranks, size_t parameters, Reduction& reduction);
  void start(Exchange& exchange) { exchange_ = &exchange; }

  void on_notice(int from, const Notice& notice);

  // `parameter` was written outside of the optimizer, before this step.
  Result<void> tell_written(size_t parameter, uint64_t step);
  // Tells the others, and waits until all of them have begun it. `sums`: how many this rank has asked for.
  Result<void> begin(uint64_t step, bool follows, uint64_t sums);
  // Of the ranks that have begun a step, the most.
  uint64_t most_rounds() const;
  // Parameters that other ranks have told were written before this step or an earlier one; once.
  std::vector<size_t> take_written(uint64_t step);
  // The first rank that begins this step by itself, if others only follow.
  std::optional<int> guide(uint64_t step) const;

  Result<void> tell_sum(uint64_t number);

  // This rank has nothing more to do by itself. Waits until that is so for everybody, or until others are at something that
  // it has to take part in.
  enum class Others { are_done, reduce, sum, step };
  Result<Others> await_others(uint64_t next_step, uint64_t sums);
  // This rank needs nobody any more; waits until that is so for everybody.
  Result<void> leave();

 private:
  struct Peer {
    uint64_t step = 0;
    uint64_t rounds = 0;    // ended when that began
    uint64_t followed = 0;  // the last step that it began because others did
    uint64_t sums = 0;      // asked for
    bool leaving = false;
    bool left = false;
  };
  Peer& own() BOTTOMLESS_REQUIRES(mutex_) { return peers_[static_cast<size_t>(rank_)]; }
  std::optional<int> sums_before(uint64_t step, uint64_t sums) const BOTTOMLESS_REQUIRES(mutex_);

  const int rank_;
  const size_t parameters_;
  Reduction& reduction_;
  Exchange* exchange_ = nullptr;
  mutable Mutex mutex_;
  std::vector<Peer> peers_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::vector<ParameterWritten> written_ BOTTOMLESS_GUARDED_BY(mutex_);  // elsewhere
};

}  // namespace bottomless
