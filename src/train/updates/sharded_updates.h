// Updates over ranks (bottomless/shard.h): each rank has a share of every parameter and updates that. Checkpoints have the
// names and shapes of those of one process, so either continues what the other has saved.
// Lifetime: the model, the ranks and the Runtime outlive it. When it ends, nobody has the whole model any more.
// Errors: thrown as c10::Error, but for those of save() and load().
#pragma once
#include <bottomless/shard.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch/checkpoint/shard_checkpoint.h"
#include "torch/shard/shard_inside.h"
#include "train/models/model.h"
#include "train/setup/ranks.h"
#include "train/updates/updates.h"

namespace bottomless::train {

// For every rank but the first, whose content comes from there.
std::shared_ptr<Model> unfilled_model(const ModelConfig& config, at::ScalarType dtype);

class ShardedUpdates final : public Updates {
 public:
  ShardedUpdates(Model& model, NamedTensors trained, const UpdateOptions& options, Ranks& ranks,
                 int stage);

  void begin_step(double rate) override;
  void before_backward(bool final) override;
  void layer_done(int64_t) override {}
  double finish_step() override;
  void label(Runtime& runtime) const override;
  Result<void> save(const std::filesystem::path& directory, uint64_t step, const NamedTensors& kept,
                    const nlohmann::json& extra) override;
  Result<void> load(const std::filesystem::path& directory, const std::vector<TensorSpec>& saved,
                    const NamedTensors& kept) override;
  std::optional<Bytes> received() const override { return shard_.stats().received_bytes; }

 private:
  using States = std::map<std::string, torch::Tensor>;

  size_t index_of(const torch::Tensor& whole) const {
    return indices_.at(whole.unsafeGetTensorImpl());
  }
  const torch::Tensor& slice_of(size_t index) const { return inside_.slices()[index]; }
  const States* states_of(size_t index) const;  // null: none here
  std::vector<Share> shares_of(size_t index, Bytes element) const;
  nlohmann::json describe_states() const;
  LogicalTensor logical_parameter(const NamedTensor& named) const;
  LogicalTensor logical_state(const NamedTensor& parameter, const std::string& state, Dtype dtype,
                              std::vector<uint64_t> shape) const;
  Result<void> check(const std::filesystem::path& directory, const NamedTensors& kept) const;
  void read(const std::filesystem::path& directory, const std::vector<TensorSpec>& saved,
            const NamedTensors& kept);

  const NamedTensors trained_;
  const UpdateOptions options_;
  Ranks& ranks_;
  const std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Shard shard_;
  ShardInside inside_;
  std::unordered_map<const at::TensorImpl*, size_t> indices_;  // of whole parameters
  std::optional<Shard::NoSync> accumulating_;
  uint64_t saves_ = 0;
};

}  // namespace bottomless::train
