// How a run changes its parameters: the optimizer and the clipping, and how they are kept in a checkpoint.
// Thread-safety: one thread at a time.
// Lifetime: as torch's optimizers, it keeps the parameters alive.
#pragma once
#include <bottomless/optim.h>
#include <bottomless/result.h>
#include <bottomless/torch.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/dtype.h"
#include "train/models/named_tensor.h"

namespace bottomless::train {

struct UpdateOptions {
  std::string optimizer = "adamw";  // one of optimizer_names()
  double weight_decay = 0.01;       // of matrices; vectors (norms, biases) never decay
  double beta1 = 0.9;
  double beta2 = 0.999;
  double momentum = 0.9;  // of sgd
  double max_norm = 1;    // over all gradients; 0: never clipped
  optim::States states = optim::States::float32;
};

std::vector<std::string> optimizer_names();

// The layer that a parameter's name tells of, as 3 of "model.layers.3.mlp.up_proj.weight"; none: -1.
int64_t layer_of(const std::string& parameter_name);

// An optimizer that clips, and leaves out what is not finite, where the options say so.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<torch::Tensor>& parameters, const UpdateOptions& options);

// A state of 8 bits an element, and beside it a tensor of its scales: both are zero.
inline const std::string kScales = "_scales";  // behind the name of the state
std::tuple<torch::Tensor, torch::Tensor> new_codes(const torch::Tensor& like, bool has_sign);

// What the states of a parameter are called in a checkpoint: "optimizer.STATE.PARAMETER".
std::string state_name(const std::string& state, const std::string& parameter);
// Those of one parameter, by state.
std::map<std::string, const TensorSpec*> states_in(const std::vector<TensorSpec>& saved,
                                                   const std::string& parameter);

class Updates {
 public:
  virtual ~Updates();

  virtual void begin_step(double rate) = 0;
  // Before every backward pass: whether what it adds to the gradients of its parameters is the last of this step.
  virtual void before_backward(bool final) = 0;
  virtual void layer_done(int64_t layer) = 0;  // its gradients are final
  // Updates what has not been updated yet; there are no gradients any more then. Returns their norm before clipping. A step
  // with a gradient that is not finite is left out where there is clipping.
  virtual double finish_step() = 0;

  // Tells the runtime which tensors are parameters and which are states.
  virtual void label(Runtime& runtime) const = 0;

  // `kept` are the parameters that belong into the checkpoint, by their names there; the states go with them. All ranks
  // call these.
  virtual Result<void> save(const std::filesystem::path& directory, uint64_t step,
                            const NamedTensors& kept, const nlohmann::json& extra) = 0;
  virtual Result<void> load(const std::filesystem::path& directory,
                            const std::vector<TensorSpec>& saved, const NamedTensors& kept) = 0;

  // From other ranks so far; none: there are none.
  virtual std::optional<Bytes> received() const { return std::nullopt; }

 protected:
  Updates() = default;
  Updates(const Updates&) = delete;
  Updates& operator=(const Updates&) = delete;
};

}  // namespace bottomless::train
