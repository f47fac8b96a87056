// ZeRO over ranks: of every parameter each rank has a share, which its optimizer updates. The whole parameter is a storage
// whose content the ranks have together, gathered when an operator needs it; its gradients are summed into the shares.
// Stage 1 keeps whole gradients until they are reduced, and what was gathered; 2 gives gradients away as they become final;
// 3 drops what was gathered, too, when its room is needed.
//
// A step: contribute() each gradient; reduce(), as often as somebody looks at them; begin_step(), which waits for all ranks;
// the optimizer updates slices(); end_step(), from when on everybody gathers the new content.
// Thread-safety: contribute() from any thread, everything else from one at a time.
// Lifetime: the limit that was in force when it was made does not end before it. Errors are thrown as torch's.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "ranks/gather.h"
#include "ranks/node_shares.h"
#include "ranks/step_protocol.h"
#include "torch/runtime/session.h"
#include "torch/shard/c10d_transport.h"
#include "torch/shard/reduced_tensors.h"

namespace bottomless {

enum class Owning { shares, whole };  // whole: for optimizers that look at a parameter as a whole

// A second set of shares within each node, for stage 3: what was gathered once comes from there until the next step.
enum class NodeCopies { none, shares };

struct ShardingOptions {
  int stage = 3;
  Owning owning = Owning::shares;
  Format weights = Format::plain;    // as they are gathered
  Format gradients = Format::plain;  // as they are reduced
  std::chrono::nanoseconds deadline = std::chrono::minutes(10);
  int ranks_per_node = 0;  // so many consecutive ones; 0: all ranks are one node
  NodeCopies node_copies = NodeCopies::none;
};

[[noreturn]] void refuse_to_shard(const std::string& what);

class Sharding {
 public:
  Sharding(c10::intrusive_ptr<c10d::Backend> backend, std::vector<std::string> names,
           std::vector<at::Tensor> parameters, const ShardingOptions& options);
  ~Sharding();
  Sharding(const Sharding&) = delete;
  Sharding& operator=(const Sharding&) = delete;

  int rank() const { return transport_.rank(); }
  int ranks() const { return transport_.ranks(); }
  size_t size() const { return parameters_.size(); }
  Engine& engine() { return session_->engine(); }
  Bytes piece_bytes() const { return piece_bytes_; }  // of what is sent at once
  // This rank's shares, of one dimension; where a rank owns whole parameters, with their shape, or without elements.
  const at::Tensor& slice(size_t parameter) const { return parameters_[parameter].slice; }
  const std::vector<Share>& shares(size_t parameter) const { return parameters_[parameter].shares; }

  void contribute(size_t parameter, const at::Tensor& gradient);
  std::vector<at::Tensor> reduce();  // see Reduction::take
  // Likewise. `touched` are parameters whose shares the optimizer changes even if nobody contributed: those that have a
  // gradient from before.
  std::vector<at::Tensor> begin_step(const std::vector<size_t>& touched = {});
  void end_step();

  // All ranks call these, between steps. What was written to whole parameters since the last step goes into the slices.
  void adopt_writes();
  // Between these, the slices get new content that no step makes; everybody gathers that from then on. Nobody may need the
  // old content any more.
  void begin_renewal();
  void end_renewal();

  // The element-wise sum of all ranks' values (float64), in the order of ranks.
  at::Tensor sum_over_ranks(const at::Tensor& values);
  void copy_from_first(const at::Tensor& tensor);  // rank 0's content to all
  // What each rank says, by rank.
  std::vector<std::string> exchange_texts(const std::string& own);

  // Lets others read a tensor, under a number that all ranks know it by.
  void publish(int64_t number, const at::Tensor& tensor);
  void retract(int64_t number);
  void read(int rank, int64_t number, Bytes offset, const at::Tensor& into);
  // So much of it, to this rank itself as well.
  void wait_until_given(int64_t number, Bytes bytes);

  // Nothing more to do here. Waits until that is so for everybody, or until others are at something that this rank has to
  // take part in: reduce() and apply what it gives, sum_over_ranks() of what a script's ranks sum between steps, or a step.
  using Others = StepProtocol::Others;
  Others await_others();
  // When all are done: the model is this rank's own again, all of it, and nobody goes before everybody has theirs.
  enum class Model { kept, forgotten };
  void part(Model model);
  // The first rank that begins the step under way by itself, if others take part in it only because of that.
  std::optional<int> guide() const;
  void close(Exchange::Shutdown shutdown = Exchange::Shutdown::orderly);

  uint64_t steps() const { return step_.load(std::memory_order_relaxed); }
  ExchangeStats stats() const { return exchange_->stats(); }

 private:
  struct Parameter {
    std::string name;
    at::Tensor whole;
    at::Tensor slice;
    std::vector<Share> shares;
    std::shared_ptr<Gather>
        gather;  // null: too small, every rank keeps it and it is fetched at once
    NodeShares::Kept* within_node = nullptr;
    uint64_t version = 1;
  };
  class Phase;

  void plan(const ShardingOptions& options);
  void compare_models();
  void distribute();
  void become_sharded(Parameter& parameter);
  void keep_within_node(Parameter& parameter);
  void take_over_writes();
  void hold_back(size_t parameter);
  void offer_share(size_t parameter);
  void renew(size_t parameter);
  void fetch_small(const std::vector<bool>& changed);
  void pull_into(const at::Tensor& into, int from, Exchange::Key key, uint64_t version,
                 Bytes offset, const std::string& what);
  void tell_writes(const std::vector<size_t>& touched, uint64_t step);
  bool differs_from_share(const Parameter& parameter);
  bool was_written(const Parameter& parameter);
  Exchange::Key offer_values(const at::Tensor& values, int to_ranks);
  void forget_values();
  std::string describe() const;

  SessionUse session_;
  C10dTransport transport_;
  const ShardingOptions options_;
  Bytes piece_bytes_ = 0;
  Bytes charged_ = 0;
  std::vector<Parameter> parameters_;
  std::vector<bool> written_;  // by somebody, outside of the optimizer
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<NodeShares> node_shares_;  // null: there are none
  std::unique_ptr<Reduction> reduction_;
  std::unique_ptr<StepProtocol> protocol_;
  std::atomic<bool> contributed_{false};  // since the last reduce()
  bool reduced_ = false;                  // in this step
  std::atomic<uint64_t> step_{0};
  std::atomic<const char*> phase_{"between steps"};  // literals only
  uint64_t values_asked_ = 0;
  struct Values {
    Exchange::Key key;
    at::Tensor tensor;
    Bytes wanted;  // by all who will ask for it
  };
  std::deque<Values> values_;
  bool follows_ = false;  // takes part in what others begin, and has nothing to do by itself
};

}  // namespace bottomless
