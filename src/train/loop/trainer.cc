#include "train/loop/trainer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace bottomless::train {
namespace {

torch::Tensor as_tensor(const std::vector<int64_t>& numbers, const data::Batch& batch) {
  const torch::Tensor all = torch::tensor(numbers, torch::kInt64);
  return all.view({static_cast<int64_t>(batch.rows), static_cast<int64_t>(batch.length)});
}

}  // namespace

MicroBatch micro_batch(const data::Batch& batch, bool documents_are_apart) {
  std::vector<int64_t> targets = batch.targets;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (batch.counts[i] == 0) targets[i] = kIgnoredTarget;
  }
  const std::vector<int64_t> documents(batch.documents.begin(), batch.documents.end());
  return {as_tensor(batch.inputs, batch), as_tensor(targets, batch),
          documents_are_apart ? Positions::packed(as_tensor(documents, batch))
                              : Positions::following(0, static_cast<int64_t>(batch.length))};
}

StepOutcome Trainer::step(uint64_t number, double rate, data::Loader& loader) {
  torch::manual_seed((seed_ * 0x9E3779B97F4A7C15u + number) ^
                     (static_cast<uint64_t>(ranks_.rank()) << 32));
  StepOutcome outcome;
  std::vector<MicroBatch> batches;
  std::vector<double> counts{0, 0};
  for (int64_t i = 0; i < shape_.micro_batches; ++i) {
    const data::Batch batch = loader.next(static_cast<uint64_t>(shape_.rows));
    counts[0] += static_cast<double>(batch.rows * batch.length);
    counts[1] += static_cast<double>(batch.counted());
    batches.push_back(micro_batch(batch, shape_.documents_are_apart));
  }
  counts = ranks_.sum(counts);
  outcome.tokens = std::llround(counts[0]);
  outcome.targets = std::llround(counts[1]);
  updates_.begin_step(rate);
  model_.train();
  // Of all ranks' gradients the mean is taken, and wanted is the mean over all ranks' targets.
  const double scale = ranks_.count() / std::max(counts[1], 1.0);
  const double loss = accumulate_gradients(
      model_, batches, scale,
      {.before_backward = [this](bool final) { updates_.before_backward(final); },
       .layer_done = [this](int64_t layer) { updates_.layer_done(layer); }});
  batches.clear();
  outcome.loss = ranks_.sum({loss}).front() / ranks_.count();
  outcome.gradient_norm = updates_.finish_step();
  return outcome;
}

double Trainer::evaluate(const data::Rows& rows) {
  model_.eval();
  std::vector<double> sums{0, 0};  // of losses, and targets
  const auto ranks = static_cast<uint64_t>(ranks_.count());
  uint64_t row = static_cast<uint64_t>(ranks_.rank());
  while (row < rows.size()) {
    std::vector<MicroBatch> batches;
    for (int64_t b = 0; b < shape_.micro_batches && row < rows.size(); ++b) {
      data::Batch batch;
      for (int64_t i = 0; i < shape_.rows && row < rows.size(); ++i, row += ranks)
        rows.read(row, batch);
      sums[1] += static_cast<double>(batch.counted());
      batches.push_back(micro_batch(batch, shape_.documents_are_apart));
    }
    sums[0] += sum_losses(model_, batches, 1);
  }
  sums = ranks_.sum(sums);
  return sums[1] > 0 ? sums[0] / sums[1] : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace bottomless::train
