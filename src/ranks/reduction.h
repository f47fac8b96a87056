// Sums the gradients of all ranks into the shares that this rank has, as they become final. Every rank announces what it
// has; the one that owns a share pulls its part from each, in a fixed order: that of ranks from its own on, cyclically. So
// the bits do not depend on who is first, and a rank that contributes nothing is passed over once it has said that its
// round is over.
// Thread-safety: every call from any thread; a thread of its own does the sums.
// Lifetime: the exchange outlives its thread.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "ranks/exchange.h"
#include "ranks/layout.h"

namespace bottomless {

struct ReducedParameter {
  std::string name;
  std::vector<Share> shares;  // by rank, in bytes of the gradient's type
  Element element = Element::bytes;
};

// A gradient of a whole parameter, or the sum that is this rank's share of it.
struct ReducedTensor {
  Offered memory;                // all of it
  std::shared_ptr<void> tensor;  // goes when nobody needs it any more; null: there is none
};

// How gradients are added is not the reduction's own knowledge.
struct ReductionHooks {
  // With arbitrary content, the size of this rank's share.
  std::function<Result<ReducedTensor>(size_t parameter)> new_sum;
  // Adds a piece of a gradient, divided by the number of ranks, to the sum from byte `at` on. First: to nothing, whatever is
  // there.
  std::function<Result<void>(const ReducedTensor& sum, bool first, Bytes at,
                             std::span<std::byte> piece)>
      add;
  // Called first by the thread that reduces.
  std::function<void()> prepare = [] {};
};

struct ReductionOptions {
  Format format = Format::plain;
  int rank = 0;
  int ranks = 1;
  Bytes piece_bytes = 0;
  Bytes most_waiting =
      0;  // of gradients that others have not had their parts of yet, about so much stays in memory
};

class Reduction {
 public:
  Reduction(std::vector<ReducedParameter> parameters, const ReductionOptions& options,
            ReductionHooks hooks);
  ~Reduction();
  static Bytes own_memory(Bytes piece_bytes) { return 2 * piece_bytes + Thread::kStackBytes; }
  // What was noticed before counts.
  Result<void> start(Exchange& exchange);

  // A gradient of the whole parameter that this rank has, for the round under way. It is freed when all have their part. A
  // rank that is ahead of the others waits for them here, unless that is in vain.
  Result<void> contribute(size_t parameter, ReducedTensor gradient);
  // This rank has no more to contribute to the round under way.
  Result<void> end_round();
  uint64_t round() const;
  // Waits until all ranks have ended the rounds that this one has, and their gradients are in.
  Result<void> wait_for_rounds();
  // The sums over ranks and rounds since they were last taken, divided by the number of ranks, for each parameter; none
  // where nobody contributed. Then the next round may begin.
  std::vector<ReducedTensor> take();
  // Whether any rank has contributed to the rounds before this one since the last time it was forgotten.
  bool changed(size_t parameter) const;
  void forget_changes(size_t parameter);
  bool others_have_ended(uint64_t round) const;  // any of them

  // Of what this rank has contributed, what everybody has had their part of goes.
  void free_given();

  void on_notice(int from, const Notice& notice);
  // Another rank spoke of a parameter that there is not: from here on everything fails.
  void told_of_unknown(int rank, uint64_t parameter);
  // A rank that has come to the end of a step ends all its rounds up to that.
  void end_rounds_of(int rank, uint64_t rounds);
  void skip_to_round(uint64_t round);
  // Ranks that have left contribute nothing any more.
  void close();
  std::optional<Error> failure() const;

 private:
  struct Contribution {
    size_t parameter;
    Exchange::Key key;
    ReducedTensor gradient;
  };
  struct Work {  // what comes next for one parameter
    std::map<std::pair<uint64_t, uint32_t>, std::vector<bool>> ready;  // by round and turn: ranks
    uint64_t round = 0;
    uint32_t turn = 0;
    int at = 0;  // ranks from this one on that the turn has seen
    ReducedTensor sum;
    bool begun = false;         // something has been added to it
    std::set<uint64_t> rounds;  // in which anybody has contributed
  };
  struct Task {
    size_t parameter;
    int from;
    uint64_t round;
    uint32_t turn;
  };

  Exchange::Key key_of(size_t parameter, uint64_t round, uint32_t turn) const;
  void fail_because_of(int rank, uint64_t parameter) BOTTOMLESS_REQUIRES(mutex_);
  void note_ready(size_t parameter, int rank, uint64_t round, uint32_t turn)
      BOTTOMLESS_REQUIRES(mutex_);
  std::optional<Task> next_task() BOTTOMLESS_REQUIRES(mutex_);
  std::optional<Task> advance(size_t parameter) BOTTOMLESS_REQUIRES(mutex_);
  void run();
  Result<void> wait_for_takers(Bytes bytes);
  Result<ReducedTensor> sum_of(size_t parameter);
  Result<void> announce_use(size_t parameter, const ReducedTensor& gradient);
  Result<void> add(const Task& task);
  int late_rank();

  Exchange* exchange_ = nullptr;
  const std::vector<ReducedParameter> parameters_;
  const ReductionOptions options_;
  const ReductionHooks hooks_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Work> work_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::vector<uint64_t> ended_ BOTTOMLESS_GUARDED_BY(mutex_);  // by rank: rounds it has ended
  std::vector<uint32_t> turns_ BOTTOMLESS_GUARDED_BY(mutex_);  // own, of the round under way
  std::deque<Contribution> contributions_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::optional<Error> failure_ BOTTOMLESS_GUARDED_BY(mutex_);
  uint64_t round_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // under way here
  // Until the sums of a round have been taken, nothing of the next one may be added, however early others are.
  uint64_t allowed_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;
  uint64_t waits_from_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;     // the round, for those who take
  uint32_t useless_waits_ BOTTOMLESS_GUARDED_BY(mutex_) = 0;  // rounds in a row with such a wait
  bool busy_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  bool closing_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::array<std::vector<std::byte>, 2> buffers_;  // of the thread
  Thread thread_;
};

}  // namespace bottomless
