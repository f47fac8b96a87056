#include "train/updates/local_updates.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "train/loop/run_checkpoint.h"
#include "train/models/parameter_types.h"

namespace bottomless::train {
namespace {

double square_sum(const std::vector<torch::Tensor>& parameters) {
  static const auto sum = c10::Dispatcher::singleton()
                              .findSchemaOrThrow("bottomless::sum_of_squares", "")
                              .typed<torch::Tensor(const torch::Tensor&)>();
  double squares = 0;
  for (const torch::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) squares += sum.call(parameter.grad()).item<double>();
  }
  return squares;
}

std::vector<torch::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

NamedTensors joined(NamedTensors first, NamedTensors then) {
  for (NamedTensor& named : then) first.push_back(std::move(named));
  return first;
}

}  // namespace

LocalUpdates::LocalUpdates(NamedTensors trained, const UpdateOptions& options)
    : trained_(std::move(trained)), options_(options) {
  for (const NamedTensor& named : trained_) layers_[layer_of(named.name)].push_back(named.tensor);
  const torch::NoGradGuard no_grad;
  if (options_.max_norm > 0) {
    groups_.push_back({tensors_of(trained_), make_optimizer(tensors_of(trained_), options_)});
    return;
  }
  for (const auto& [layer, parameters] : layers_) {
    group_of_layer_[layer] = groups_.size();
    groups_.push_back({parameters, make_optimizer(parameters, options_)});
  }
}

void LocalUpdates::begin_step(double rate) {
  squares_ = 0;
  for (Group& group : groups_) {
    for (auto& each : group.optimizer->param_groups()) each.options().set_lr(rate);
  }
}

double LocalUpdates::update(Group& group) {
  const double squares = square_sum(group.parameters);
  group.optimizer->step();
  group.optimizer->zero_grad();
  return squares;
}

void LocalUpdates::layer_done(int64_t layer) {
  if (const auto found = group_of_layer_.find(layer); found != group_of_layer_.end()) {
    squares_ += update(groups_[found->second]);
  } else if (const auto parameters = layers_.find(layer); parameters != layers_.end()) {
    square_sum(parameters->second);  // while it is in memory: kept until the clipping asks again
  }
}

double LocalUpdates::finish_step() {
  if (group_of_layer_.empty()) return std::sqrt(update(groups_.front()));
  if (group_of_layer_.contains(-1)) squares_ += update(groups_[group_of_layer_.at(-1)]);
  return std::sqrt(squares_);
}

void LocalUpdates::label(Runtime& runtime) const {
  const auto mark = [&runtime](const torch::Tensor& tensor, const char* kind) {
    if (tensor.defined()) runtime.label(tensor.storage().data(), kind);
  };
  for (const NamedTensor& named : trained_) mark(named.tensor, "parameter");
  for (const NamedTensor& state : states()) mark(state.tensor, "state");
}

NamedTensors LocalUpdates::states() const {
  NamedTensors all;
  for (const NamedTensor& named : trained_) {
    for (const Group& group : groups_) {
      const auto& states = group.optimizer->state();
      const auto found = states.find(named.tensor.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      for (const auto& [name, tensor] :
           static_cast<const optim::ParamState&>(*found->second).tensors)
        all.push_back({state_name(name, named.name), tensor});
    }
  }
  return all;
}

void LocalUpdates::make_states(const std::vector<TensorSpec>& saved) {
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& named : trained_) {
    const auto found = states_in(saved, named.name);
    if (found.empty()) continue;  // it has had no gradient yet
    auto state = std::make_unique<optim::ParamState>();
    for (const auto& [name, spec] : found) {
      if (state->tensors.contains(name)) continue;
      if (found.contains(name + kScales)) {
        std::tie(state->tensors[name], state->tensors[name + kScales]) =
            new_codes(named.tensor, spec->dtype == Dtype::i8);
      } else if (!name.ends_with(kScales)) {
        const std::vector<int64_t> shape(spec->shape.begin(), spec->shape.end());
        state->tensors[name] = torch::empty(shape, *scalar_type(spec->dtype));
      }
    }
    for (Group& group : groups_) {
      for (const torch::Tensor& parameter : group.parameters) {
        if (parameter.is_same(named.tensor))
          group.optimizer->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
      }
    }
  }
}

Result<void> LocalUpdates::save(const std::filesystem::path& directory, uint64_t step,
                                const NamedTensors& kept, const nlohmann::json& extra) {
  return write_run(directory, step, joined(kept, states()), extra);
}

Result<void> LocalUpdates::load(const std::filesystem::path& directory,
                                const std::vector<TensorSpec>& saved, const NamedTensors& kept) {
  make_states(saved);
  return read_run_tensors(directory, joined(kept, states()));
}

}  // namespace bottomless::train
