// What a training run will need and take, from its sizes and the machine's speeds alone, before anything is loaded.
// The model (docs/estimate.md has it in words): what does not fit is on the disk and moves each step as often as the step uses
// it; computing and transfers overlap; nine tenths of the limit are there for blocks. It is a floor, not a promise.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/kind.h"

namespace bottomless {

enum class Gathered { kept, given_up };
enum class Gradients { kept, used_up_at_once };  // the latter: updates in the backward pass

struct RunShape {
  uint64_t parameters = 0;  // of the whole model
  uint64_t trained = 0;     // of these; adapters count in both
  uint64_t saved = 0;       // parameters that a checkpoint holds, besides states
  // Of these, in tensors so small that they never leave memory, and what the runtime takes for itself.
  uint64_t small = 0, small_trained = 0;
  Bytes own_memory = 0;
  // Of these, that a token's products leave out: embeddings that are only looked up, experts that are not chosen.
  uint64_t idle = 0, idle_trained = 0;
  uint64_t largest_layer = 0;  // parameters
  uint64_t layers = 0, hidden = 0, vocabulary = 0;
  unsigned parameter_bytes = 4, gradient_bytes = 4;
  double state_bytes = 8;  // for each trained parameter, master weights included
  // Of these, that one of several ranks keeps; what it gathers of others' comes over the network.
  double parameter_share = 1, gradient_share = 1, state_share = 1;
  unsigned ranks = 1;
  // With several: what was gathered is kept, on the disk if need be, until it changes (stages 1 and 2), or given up when its room is
  // needed and gathered again (stage 3).
  Gathered gathered = Gathered::given_up;
  Gradients gradients = Gradients::kept;
  uint64_t rows = 1, micro_batches = 1,
           length = 1024;  // all micro-batches pass a layer before the next
  // Numbers kept for the backward pass of a layer, for each token and hidden unit: a transformer's usual ones, attention without
  // its square matrix.
  double kept_per_unit = 17;
  unsigned activation_bytes = 4;

  double tokens() const {
    return static_cast<double>(rows) * static_cast<double>(micro_batches) *
           static_cast<double>(length);
  }
};

struct RunMachine {
  Bytes memory_limit = 0;
  Bytes disk_free = 0;
  Bytes checkpoints_free = 0;  // where checkpoints go
  bool checkpoints_share_disk = false;
  double read_rate = 0, write_rate = 0, both_rate = 0;  // of the disk, bytes per second
  double flops = 0;                                     // that matrix products reach at best
  double flops_least = 0;   // the least that is credible after the measurement; 0: as `flops`
  double network_rate = 0;  // bytes per second that a rank receives; 0: not known
  double endurance_bytes = 600e12;  // that the drive's maker lets one write
};

struct KindEstimate {
  Bytes in_memory = 0, on_disk = 0;
  Bytes read = 0, written = 0;  // in a step

  Bytes all() const { return in_memory + on_disk; }
};

// The last two checkpoints are kept while the next one is written.
inline constexpr unsigned kCheckpointsAtOnce = 3;

enum class RunVerdict {
  fits,
  computing_limits,
  disk_limits,
  network_limits,
  too_little_memory,
  too_little_disk
};

struct RunEstimate {
  std::array<KindEstimate, kKinds> kinds{};  // Kind::other is what one layer works with
  KindEstimate all;
  Bytes least_memory = 0;  // below this limit it cannot run
  Bytes received = 0;      // in a step, from other ranks
  Bytes checkpoint = 0;    // one, of all ranks together
  double products = 0;     // operations in products with weights, in a step
  double computing_seconds = 0, disk_seconds = 0, network_seconds = 0;
  double computing_seconds_most = 0;  // by RunMachine::flops_least
  double seconds = 0;                 // of a step, at best
  double tokens_per_second = 0;
  double written_per_hour = 0;
  double days_of_drive = 0;  // until its endurance is written; infinite if nothing is
  RunVerdict verdict = RunVerdict::fits;

  bool can_run() const {
    return verdict != RunVerdict::too_little_memory && verdict != RunVerdict::too_little_disk;
  }
  Bytes checkpoints() const { return kCheckpointsAtOnce * checkpoint; }
  // Whether there is room for them.
  bool can_save(const RunMachine& machine) const {
    return checkpoints() + (machine.checkpoints_share_disk ? all.on_disk : 0) <=
           machine.checkpoints_free;
  }
  const KindEstimate& of(Kind kind) const { return kinds[static_cast<size_t>(kind)]; }
};

RunEstimate estimate(const RunShape& shape, const RunMachine& machine);

}  // namespace bottomless
