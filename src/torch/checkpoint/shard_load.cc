// Loading what a Shard, or Python's Sharded, has saved.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "checkpoint/strict_json.h"
#include "torch/checkpoint/checkpoint_reader.h"
#include "torch/checkpoint/training_form.h"
#include "torch/dtypes.h"
#include "torch/optim/optimizer_state.h"

namespace bottomless {
namespace {

using nlohmann::json;

void check_tensor(const CheckpointReader& reader, const std::string& name, at::IntArrayRef sizes,
                  std::optional<at::ScalarType> type) {
  const TensorEntry& entry = reader.find(name);
  const std::vector<int64_t> shape(entry.shape.begin(), entry.shape.end());
  const auto text = [](at::IntArrayRef of) {
    std::ostringstream out;
    out << of;
    return out.str();
  };
  if (sizes != at::IntArrayRef(shape))
    refuse("'" + name + "' has shape " + text(shape) + " in the checkpoint, here " + text(sizes));
  if (type && dtype_of(*type) != entry.dtype)
    refuse("'" + name + "' is of " + std::string(name_of(entry.dtype)) +
           " in the checkpoint, here of " + c10::toString(*type));
}

// All that can be wrong, before anything changes.
void check_fits(const ShardedTraining& training, const CheckpointReader& reader,
                const json& manifest) {
  std::unordered_set<std::string> wanted;
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const at::Tensor& parameter = training.parameters[i];
    const std::string name = parameter_name(training, i);
    wanted.insert(name);
    check_tensor(reader, name, parameter.sizes(), parameter.scalar_type());
  }
  for (const auto& [name, buffer] : own_buffers(training.model)) {
    wanted.insert("model." + name);
    check_tensor(reader, "model." + name, buffer.sizes(), buffer.scalar_type());
  }
  for (const FileEntry& file : reader.manifest().files) {
    for (const TensorEntry& tensor : file.tensors) {
      if (!tensor.name.starts_with("optimizer.") && !wanted.contains(tensor.name))
        refuse("'" + tensor.name + "' of the checkpoint is not in this model");
    }
  }
  const json &groups = manifest.at("groups"), &states = manifest.at("states");
  for (size_t group = 0; group < std::max(groups.size(), training.groups.size()); ++group) {
    if (group >= groups.size() || group >= training.groups.size() ||
        groups[group].at("parameters") != names_of_group(training, group))
      refuse("parameter group " + std::to_string(group) +
             " of the optimizer has other parameters in the checkpoint");
    const auto options = training.optimizer.param_groups()[group].options().clone();
    set_options(*options, groups[group].at("options").at("dict"));
    for (const size_t i : training.groups[group]) {
      const at::Tensor& parameter = training.parameters[i];
      if (!states.contains(training.names[i])) continue;
      const json& its = states[training.names[i]];
      auto names = its.at("tensors").get<std::vector<std::string>>();
      for (const std::string& key : names) {
        const std::string whole = "optimizer." + key + "." + training.names[i];
        const std::vector<Share>& shares = training.sharding.shares(i);
        const bool is_split = std::any_of(shares.begin(), shares.end(), [&](const Share& share) {
          return share.bytes() > 0 && share.bytes() < parameter.nbytes();
        });
        if (is_split) check_tensor(reader, whole, parameter.sizes(), std::nullopt);
        (void)reader.find(whole);
      }
      for (const auto& [key, value] : its.at("values").items()) {
        (void)scalar_of(value);
        names.push_back(key);
      }
      check_state(*options, parameter, names);
    }
  }
}

at::Tensor read_state(const ShardedTraining& training, CheckpointReader& reader, size_t index,
                      const std::string& name) {
  const at::Tensor &parameter = training.parameters[index], &slice = training.slices[index];
  const TensorEntry& entry = reader.find(name);
  const at::ScalarType type = scalar_type_of(entry.dtype);
  const std::vector<int64_t> shape(entry.shape.begin(), entry.shape.end());
  if (parameter.sizes() != at::IntArrayRef(shape)) {
    at::Tensor state = at::empty(shape, type);
    reader.read_whole(name, state);
    return state;
  }
  at::Tensor state =
      at::empty_like(slice.detach(), slice.options().dtype(type).requires_grad(false));
  reader.read(name, parameter.strides(),
              shares_of(training, index, type)[static_cast<size_t>(training.sharding.rank())],
              state);
  return state;
}

void read_states(const ShardedTraining& training, CheckpointReader& reader, const json& manifest) {
  training.optimizer.state().clear();  // room for the new ones
  const json& states = manifest.at("states");
  for (size_t group = 0; group < training.groups.size(); ++group) {
    torch::optim::OptimizerOptions& options = training.optimizer.param_groups()[group].options();
    set_options(options, manifest.at("groups")[group].at("options").at("dict"));
    for (const size_t i : training.groups[group]) {
      const at::Tensor& slice = training.slices[i];
      if (slice.numel() == 0 || !states.contains(training.names[i])) continue;
      const json& its = states[training.names[i]];
      PlainState saved;
      for (const auto& [key, value] : its.at("values").items())
        saved.emplace(key, scalar_of(value));
      for (const auto& key : its.at("tensors").get<std::vector<std::string>>())
        saved.emplace(
            key, read_state(training, reader, i, "optimizer." + key + "." + training.names[i]));
      if (auto state = state_from(options, slice, std::move(saved)))
        training.optimizer.state()[slice.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

void read_all(const ShardedTraining& training, CheckpointReader& reader, const json& manifest) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    const Share share = training.sharding.shares(i)[static_cast<size_t>(training.sharding.rank())];
    if (share.bytes() == 0) continue;
    reader.read(parameter_name(training, i), training.parameters[i].strides(), share,
                training.sharding.slice(i));
    training.slices[i].unsafeGetTensorImpl()->bump_version();
  }
  for (const auto& [name, buffer] : own_buffers(training.model)) {
    const at::Tensor content = at::empty(buffer.sizes(), buffer.scalar_type());
    reader.read_whole("model." + name, content);
    buffer.copy_(content);
  }
  read_states(training, reader, manifest);
}

}  // namespace

Result<LoadedTraining> load_training(const ShardedTraining& training,
                                     const std::filesystem::path& directory) {
  Sharding& sharding = training.sharding;
  std::unique_ptr<CheckpointReader> reader;
  json manifest, files = json::array();
  std::string problem = problem_of([&] {
    reader = std::make_unique<CheckpointReader>(directory);
    manifest = checked(parse_strict_json(reader->manifest().extra, "read its manifest"));
    if (manifest.value("kind", "") != kTrainingKind || manifest.value("version", 0) != 1)
      refuse("it is a checkpoint, but not one of a training by this version of bottomless");
    for (const FileEntry& file : reader->manifest().files) files.push_back(file.name);
    check_fits(training, *reader, manifest);
  });
  const std::string attempted = "load " + directory.string();
  const std::vector<json> everybody = exchange(
      sharding, {{"problem", problem}, {"files", files}});  // and now nobody needs the old content
  if (std::optional<Error> error = problem_of_any(everybody, attempted)) return *error;
  for (const json& said : everybody) {
    if (said.at("files") != files)
      return Error{Code::io, attempted + ": ranks see different checkpoints: load again"};
  }
  sharding.begin_renewal();
  problem = problem_of([&] { read_all(training, *reader, manifest); });
  sharding.end_renewal();
  if (std::optional<Error> error = problem_of_any(exchange(sharding, {{"problem", problem}}),
                                                  attempted + " (parts of it are loaded)"))
    return *error;
  return LoadedTraining{.step = reader->manifest().step,
                        .extra = checked(write_json(decoded(manifest.at("extra")), -1, attempted))};
}

}  // namespace bottomless
