// Sums the gradients of all ranks into the shares that this rank has, as they become final. Every rank announces what it
// has; the one that owns a share pulls its part from each, in a fixed order: that of ranks from its own on, cyclically. So
// the bits do not depend on who is first, and a rank that contributes nothing is passed over once it has said that its
// round is over.
// Thread-safety: every call from any thread; a thread of its own does the sums.
// Lifetime: the exchange outlives its thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
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
  at::Tensor like;            // the whole parameter: what its gradients look like
  std::vector<Share> shares;  // by rank, in bytes of the gradient's type
  Element element = Element::bytes;
};

class Reduction {
 public:
  static constexpr uint64_t kReady = 1, kRoundEnds = 2;  // of Notice::what

  // Of gradients that others have not had their parts of yet, about `most_waiting` stay in memory.
  Reduction(std::vector<ReducedParameter> parameters, Format format, int rank, int ranks,
            Bytes piece_bytes, Bytes most_waiting);
  ~Reduction();
  static Bytes own_memory(Bytes piece_bytes) { return 2 * piece_bytes + Thread::kStackBytes; }
  // What was noticed before counts.
  Result<void> start(Exchange& exchange);

  // A gradient of the whole parameter that this rank has, for the round under way. It is freed when all have their part. A
  // rank that is ahead of the others waits for them here, unless that is in vain.
  Result<void> contribute(size_t parameter, at::Tensor gradient);
  // This rank has no more to contribute to the round under way.
  Result<void> end_round();
  uint64_t round() const;
  // Waits until all ranks have ended the rounds that this one has, and their gradients are in.
  Result<void> wait_for_rounds();
  // The sums over ranks and rounds since they were last taken, divided by the number of ranks, for each parameter; undefined
  // where nobody contributed. Then the next round may begin.
  std::vector<at::Tensor> take();
  // Whether any rank has contributed to the rounds before this one since the last time it was forgotten.
  bool changed(size_t parameter) const;
  void forget_changes(size_t parameter);
  bool others_have_ended(uint64_t round) const;  // any of them

  // Of what this rank has contributed, what everybody has had their part of goes.
  void free_given();

  void noticed(int from, const Notice& notice);
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
    at::Tensor gradient;
  };
  struct Work {  // what comes next for one parameter
    std::map<std::pair<uint64_t, uint32_t>, std::vector<bool>> ready;  // by round and turn: ranks
    uint64_t round = 0;
    uint32_t turn = 0;
    int at = 0;  // ranks from this one on that the turn has seen
    at::Tensor sum;
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
  Result<at::Tensor> sum_of(size_t parameter);
  Result<void> announce_use(size_t parameter, const at::Tensor& gradient);
  Result<void> add(const Task& task);
  Result<void> add_piece(const at::Tensor& sum, bool first, Bytes at, std::span<std::byte> piece);
  int late_rank();

  Exchange* exchange_ = nullptr;
  const int rank_;
  const int ranks_;
  const std::vector<ReducedParameter> parameters_;
  const Format format_;
  const Bytes piece_bytes_;
  const Bytes most_waiting_;
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
