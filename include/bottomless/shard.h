// ZeRO over ranks: every rank keeps a share of each parameter, of its gradient and of the optimizer's states, and trains on
// its own part of each batch. Whole parameters are gathered when an operator needs them. docs/ranks.md says more.
//
//   bottomless::Runtime runtime({.memory = 4_GiB, .disk = {"/nvme/scratch"}});
//   bottomless::Shard shard(*model, optimizer, bottomless::join_ranks());  // before the first step
//   ...
//   loss.backward();
//   shard.clip_grad_norm_(1.0);
//   shard.step();  // in place of optimizer.step() and zero_grad()
//
// Thread-safety: one thread at a time.
// Lifetime: model, optimizer and Runtime outlive the Shard. When it ends, each rank has the whole model.
// Errors: thrown as c10::Error; every wait for other ranks ends by its deadline and says for whom.
#pragma once
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace bottomless {

// A connection between the ranks that torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) or mpirun (OMPI_COMM_WORLD_RANK
// and _SIZE, PMI_RANK and _SIZE; MASTER_ADDR where there is more than one machine) started, for one Shard: Gloo, over the
// interfaces in GLOO_SOCKET_IFNAME if that is set. Every call makes another one; all ranks call it equally often, and keep
// the first.
c10::intrusive_ptr<c10d::Backend> join_ranks(
    std::chrono::seconds deadline = std::chrono::minutes(10));

enum class Traffic { plain, eight_bits };
enum class Buffers { of_first_rank, of_each_rank };

struct ShardOptions {
  int stage = 3;  // 1: states are sharded; 2: gradients, too; 3: parameters, too
  std::chrono::seconds deadline = std::chrono::minutes(10);  // of every wait for another rank
  Traffic weights = Traffic::plain;                          // as they are gathered
  Traffic gradients = Traffic::plain;                        // as they are summed up
  Buffers buffers = Buffers::of_first_rank;                  // copied to all after every step
  // At stage 3, a second set of shares within every so many consecutive ranks: only the first gather of a step crosses
  // nodes. 0: none.
  int ranks_per_node = 0;
};

// Of this rank, as it crossed the network.
struct ShardStats {
  std::uint64_t steps = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t received_parameter_bytes = 0;
  std::uint64_t received_gradient_bytes = 0;
  std::uint64_t received_across_bytes = 0;            // from other nodes
  std::uint64_t received_parameter_across_bytes = 0;  // likewise
};

struct SaveOptions {
  std::optional<std::uint64_t> step;  // none: the steps taken, with those of what was loaded
  std::string extra = "null";         // JSON, of the program's own
};

// Of a checkpoint.
struct Loaded {
  std::uint64_t step = 0;
  std::string extra;  // JSON
};

class Shard {
 public:
  // All ranks begin with rank 0's parameters and buffers. From then on the optimizer has this rank's shares as its parameters;
  // one that may look at a parameter as a whole (any but Adam, AdamW, SGD, RMSprop, Adagrad and Lion) has whole ones, each
  // of them on one rank. LBFGS is refused, and an optimizer that clips by itself or has taken steps. `ranks`: a backend that can
  // send and receive CPU tensors, and that nobody else uses.
  Shard(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
        c10::intrusive_ptr<c10d::Backend> ranks, const ShardOptions& options = {});
  // Waits until all ranks are done and takes part in the steps that others have more. An exception on its way, or one that
  // a member has thrown, lets the others know instead.
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  int rank() const;
  int ranks() const;

  // Gradients become means over all ranks, the optimizer updates this rank's shares, all ranks see the new parameters. Then
  // there are no gradients any more. All ranks call it; one without gradients takes part with nothing.
  void step();

  // Scales the gradients so that their norm, over all parameters and ranks, is at most this; returns what it was. All ranks
  // call it, before step().
  double clip_grad_norm_(double max_norm);

  // Writes a checkpoint that any number of ranks can load, in C++ and in Python, and plain PyTorch (docs/checkpoints.md): model,
  // states and options of the optimizer, not gradients. All ranks call it, between steps. The directory holds the last one or
  // this one, complete, whatever happens; when it cannot be written, all ranks throw and may go on.
  void save(const std::filesystem::path& directory, const SaveOptions& options = {});
  // Takes a checkpoint over, that of Shard::save or of Python's Sharded.save. All ranks call it, between steps; each reads its own
  // shares. What does not fit throws on all ranks, before anything has changed.
  Loaded load(const std::filesystem::path& directory);

  // While one lives, gradients accumulate on this rank without traffic. The backward pass after it sends their sums.
  class NoSync {
   public:
    explicit NoSync(Shard& shard);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Shard& shard_;
    const bool before_;
  };

  ShardStats stats() const;

 private:
  friend class ShardInside;  // for parts of this library above it
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bottomless
