// One optimizer step after the other: batches from the data, gradients layer by layer, one update.
// Thread-safety: one thread at a time.
// Lifetime: everything it is given outlives it.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "data/loader.h"
#include "train/loop/layer_major.h"
#include "train/setup/ranks.h"
#include "train/updates/updates.h"

namespace bottomless::train {

struct StepShape {
  int64_t rows = 1;                  // of a micro-batch
  int64_t micro_batches = 1;         // of a step, on each rank
  bool documents_are_apart = false;  // documents that share a row do not see each other
};

struct StepOutcome {
  double loss = 0;           // mean over the targets
  double gradient_norm = 0;  // before clipping
  int64_t tokens = 0;        // that went in, padding included
  int64_t targets = 0;       // that counted
};

// Of rows as the data gives them.
MicroBatch micro_batch(const data::Batch& batch, bool documents_are_apart);

class Trainer {
 public:
  Trainer(Model& model, Updates& updates, Ranks& ranks, const StepShape& shape, uint64_t seed)
      : model_(model), updates_(updates), ranks_(ranks), shape_(shape), seed_(seed) {}

  // Chance (dropout) depends on the seed, the number of the step and the rank alone, so a run that goes on later is the same run.
  // All ranks take part, each with rows of its own; the outcome is that of all of them.
  StepOutcome step(uint64_t number, double rate, data::Loader& loader);

  // The mean loss over all of the rows, which the ranks share.
  double evaluate(const data::Rows& rows);

 private:
  Model& model_;
  Updates& updates_;
  Ranks& ranks_;
  const StepShape shape_;
  const uint64_t seed_;
};

}  // namespace bottomless::train
