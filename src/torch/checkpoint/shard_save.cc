// Saving a Shard's training.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <map>
#include <optional>
#include <utility>

#include "checkpoint/strict_json.h"
#include "torch/checkpoint/training_form.h"
#include "torch/dtypes.h"
#include "torch/optim/optimizer_state.h"

namespace bottomless {
namespace {

using nlohmann::json;

json names_in(const Tensors& tensors) {
  json names = json::array();
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

json manifest_of(const ShardedTraining& training, const std::string& extra) {
  const auto split = training.names.begin() + static_cast<std::ptrdiff_t>(training.of_model);
  json model(std::vector<std::string>(training.names.begin(), split));
  for (const auto& [name, buffer] : own_buffers(training.model)) model.push_back(name);
  json names = names_in(pairs_of(training.model.named_parameters()));
  for (const auto& [name, buffer] : pairs_of(training.model.named_buffers())) names.push_back(name);
  json groups = json::array();
  for (size_t i = 0; i < training.groups.size(); ++i) {
    const json options = plain_options(training.optimizer.param_groups()[i].options());
    groups.push_back({{"parameters", names_of_group(training, i)},
                      {"names", nullptr},
                      {"options", {{"dict", options}}}});
  }
  return {{"kind", kTrainingKind},
          {"version", 1},
          {"model", model},
          {"names", names},
          {"aliases", aliases_of(training.model)},
          {"others", std::vector<std::string>(split, training.names.end())},
          {"groups", groups},
          {"extra", encoded(checked(parse_strict_json(extra, "read extra")))}};
}

LogicalTensor logical(std::string name, at::ScalarType type, at::IntArrayRef sizes,
                      at::IntArrayRef strides, std::vector<Share> shares) {
  const std::optional<Dtype> dtype = dtype_of(type);
  if (!dtype) refuse("save '" + name + "': safetensors has no " + c10::toString(type));
  LogicalTensor tensor{.spec = {.name = std::move(name), .dtype = *dtype},
                       .strides = strides.vec(),
                       .shares = std::move(shares)};
  tensor.spec.shape.assign(sizes.begin(), sizes.end());
  return tensor;
}

std::vector<int64_t> row_major(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * sizes[d];
  return strides;
}

struct OwnStates {
  json described = json::object();  // for the other ranks
  std::map<std::pair<size_t, std::string>, at::Tensor> tensors;
};

void describe_state(const ShardedTraining& training, size_t index, OwnStates& own) {
  const at::Tensor& slice = training.slices[index];
  const auto found = training.optimizer.state().find(slice.unsafeGetTensorImpl());
  if (slice.numel() == 0 || found == training.optimizer.state().end()) return;
  json its = {{"parts", json::object()}, {"wholes", json::object()}, {"values", json::object()}};
  for (const auto& [key, value] : plain_state(*found->second)) {
    const std::string what = "optimizer." + key + "." + training.names[index];
    const std::optional<Dtype> dtype = dtype_of(value.scalar_type());
    if (value.dim() == 0) {
      its["values"][key] = encoded_scalar(value, what);
      continue;
    }
    if (!dtype)
      refuse("save '" + what + "': safetensors has no " + c10::toString(value.scalar_type()));
    at::Tensor tensor = value.detach();
    if (value.sizes() == slice.sizes()) {
      its["parts"][key] = name_of(*dtype);
      if (value.strides() != slice.strides())
        tensor = at::empty_like(slice.detach(), slice.options().dtype(value.scalar_type()))
                     .copy_(tensor);
    } else if (slice.numel() == training.parameters[index].numel()) {
      its["wholes"][key] = {name_of(*dtype), value.sizes().vec()};
      tensor = tensor.contiguous();
    } else {
      refuse("save '" + what +
             "': its shape is not that of a share: it cannot be put together again");
    }
    const bool fills_storage =
        tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
    own.tensors[{index, key}] = fills_storage ? tensor : tensor.clone();
  }
  own.described[std::to_string(index)] = std::move(its);
}

// Adds the states of all ranks, in one order; what the manifest says of them.
json add_states(const ShardedTraining& training, const std::vector<json>& everybody,
                const OwnStates& own, ShardedSave& save) {
  json states = json::object();
  const auto own_tensor = [&](size_t index, const std::string& key) {
    const auto found = own.tensors.find({index, key});
    return found == own.tensors.end() ? at::Tensor() : found->second;
  };
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const at::Tensor& parameter = training.parameters[i];
    const std::string &name = training.names[i], number = std::to_string(i);
    const std::vector<Share>& shares = training.sharding.shares(i);
    const json* its = nullptr;
    int first_owner = 0;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      if (shares[rank].bytes() == 0 || !everybody[rank]["states"].contains(number)) continue;
      if (its == nullptr) first_owner = static_cast<int>(rank);
      if (its == nullptr) its = &everybody[rank]["states"][number];
    }
    if (its == nullptr) continue;
    json keys = json::array();
    for (const auto& [key, dtype] : (*its)["parts"].items()) {
      const at::ScalarType type = scalar_type_of(dtype_named(dtype.get<std::string>()).value());
      keys.push_back(key);
      save.add(logical("optimizer." + key + "." + name, type, parameter.sizes(),
                       parameter.strides(), shares_of(training, i, type)),
               own_tensor(i, key));
    }
    for (const auto& [key, how] : (*its)["wholes"].items()) {
      const at::ScalarType type = scalar_type_of(dtype_named(how[0].get<std::string>()).value());
      const auto shape = how[1].get<std::vector<int64_t>>();
      const Bytes bytes = c10::multiply_integers(shape) * c10::elementSize(type);
      keys.push_back(key);
      save.add(logical("optimizer." + key + "." + name, type, shape, row_major(shape),
                       whole_share(bytes, first_owner, training.sharding.ranks())),
               own_tensor(i, key));
    }
    states[name] = {{"values", (*its)["values"]}, {"tensors", keys}};
  }
  return states;
}

// Ranks that have a share of a parameter must know the same of it.
void check_alike(const ShardedTraining& training, const std::vector<json>& everybody) {
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const std::vector<Share>& shares = training.sharding.shares(i);
    std::optional<json> first;
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      if (shares[rank].bytes() == 0) continue;
      const json& states = everybody[rank]["states"];
      const std::string number = std::to_string(i);
      const json its = states.contains(number) ? states[number]["parts"] : json();
      if (!first) first = its;
      if (*first != its)
        refuse("save the states of '" + training.names[i] + "': ranks have different ones");
    }
  }
}

}  // namespace

Result<std::unique_ptr<ShardedSave>> begin_save(const ShardedTraining& training,
                                                const std::filesystem::path& directory,
                                                uint64_t step, uint64_t number,
                                                const std::string& extra) {
  const at::NoGradGuard no_grad;
  Sharding& sharding = training.sharding;
  sharding.adopt_writes();
  OwnStates own;
  json manifest;
  const std::string problem = problem_of([&] {
    for (size_t i = 0; i < training.parameters.size(); ++i) describe_state(training, i, own);
    manifest = manifest_of(training, extra);
  });
  std::vector<json> everybody =
      exchange(sharding, {{"problem", problem}, {"states", own.described}});
  const std::string attempted = "save a checkpoint to " + directory.string();
  if (std::optional<Error> error = problem_of_any(everybody, attempted)) return *error;
  // All ranks look at the same, so this is what all of them say.
  const std::string unlike = problem_of([&] { check_alike(training, everybody); });
  if (!unlike.empty()) return Error{Code::invalid_argument, attempted + ": " + unlike};
  auto save = std::make_unique<ShardedSave>(sharding, directory, step, number);
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const at::Tensor& parameter = training.parameters[i];
    save->add(logical(parameter_name(training, i), parameter.scalar_type(), parameter.sizes(),
                      parameter.strides(), sharding.shares(i)),
              sharding.slice(i));
  }
  for (const auto& [name, buffer] : own_buffers(training.model)) {
    save->add(logical("model." + name, buffer.scalar_type(), buffer.sizes(),
                      row_major(buffer.sizes()), whole_share(buffer.nbytes(), 0, sharding.ranks())),
              sharding.rank() == 0 ? buffer.detach().contiguous().clone() : at::Tensor());
  }
  manifest["states"] = add_states(training, everybody, own, *save);
  save->start(checked(write_json(manifest, -1, attempted)));
  return save;
}

}  // namespace bottomless
