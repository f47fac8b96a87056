// Updates by one process. Without clipping a layer is updated as soon as its gradients are final, so that they need never
// leave memory.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "train/updates/updates.h"

namespace bottomless::train {

class LocalUpdates final : public Updates {
 public:
  LocalUpdates(NamedTensors trained, const UpdateOptions& options);

  void begin_step(double rate) override;
  void before_backward(bool) override {}
  void layer_done(int64_t layer) override;
  double finish_step() override;
  void label(Runtime& runtime) const override;
  Result<void> save(const std::filesystem::path& directory, uint64_t step, const NamedTensors& kept,
                    const nlohmann::json& extra) override;
  Result<void> load(const std::filesystem::path& directory, const std::vector<TensorSpec>& saved,
                    const NamedTensors& kept) override;

 private:
  struct Group {
    std::vector<torch::Tensor> parameters;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  double update(Group& group);
  NamedTensors states() const;
  // With arbitrary content, for what was saved to be read into.
  void make_states(const std::vector<TensorSpec>& saved);

  const NamedTensors trained_;
  const UpdateOptions options_;
  std::map<int64_t, std::vector<torch::Tensor>> layers_;
  std::vector<Group> groups_;  // with clipping one; otherwise the first has what is in no layer
  std::map<int64_t, size_t> group_of_layer_;  // empty with clipping
  double squares_ = 0;                        // of what was updated in this step
};

}  // namespace bottomless::train
