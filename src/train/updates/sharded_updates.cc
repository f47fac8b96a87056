#include "train/updates/sharded_updates.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "optim/quantised.h"
#include "torch/checkpoint/checkpoint_reader.h"
#include "torch/errors.h"
#include "train/files/tensor_files.h"
#include "train/models/parameter_types.h"

namespace bottomless::train {
namespace {

using nlohmann::json;

class Unfilled final : public ParameterSource {
 public:
  explicit Unfilled(at::ScalarType dtype) : dtype_(dtype) {}
  torch::Tensor make(const ParameterSpec& spec) override {
    return at::empty(spec.shape, at::TensorOptions(dtype_));
  }

 private:
  const at::ScalarType dtype_;
};

// The norm is that of all ranks, so it is not the optimizer that clips and decides.
UpdateOptions without_clipping(UpdateOptions options) {
  options.max_norm = 0;
  return options;
}

std::vector<torch::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<torch::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

std::vector<int64_t> row_major(const std::vector<uint64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * static_cast<int64_t>(shape[i]);
  return strides;
}

int first_owner(const std::vector<Share>& shares) {
  const auto has = [](const Share& share) { return share.bytes() > 0; };
  return static_cast<int>(std::find_if(shares.begin(), shares.end(), has) - shares.begin());
}

// Others read it from the beginning of its storage; codes share one with their scales.
torch::Tensor with_own_storage(const torch::Tensor& state) {
  return state.storage().nbytes() == state.nbytes() ? state : state.clone();
}

// Whether a state has an element for each of the parameter's, and so a share on each rank that has one of that.
bool is_part_of(const torch::Tensor& parameter, const std::vector<uint64_t>& shape) {
  const auto sizes = parameter.sizes();
  return !shape.empty() && std::vector<uint64_t>(sizes.begin(), sizes.end()) == shape;
}

template <class Work>
Result<void> attempt(Work work) {
  try {
    return work();
  } catch (const c10::Error& error) {
    return caught(error);
  } catch (const json::exception& error) {  // what another rank said of its states
    return Error{Code::corrupt, std::string("hear of the states of other ranks: ") + error.what() +
                                    "; do all ranks run the same version?"};
  }
}

}  // namespace

std::shared_ptr<Model> unfilled_model(const ModelConfig& config, at::ScalarType dtype) {
  Unfilled source(dtype);
  return make_model(config, source);
}

ShardedUpdates::ShardedUpdates(Model& model, NamedTensors trained, const UpdateOptions& options,
                               Ranks& ranks, int stage)
    : trained_(std::move(trained)),
      options_(options),
      ranks_(ranks),
      optimizer_(make_optimizer(tensors_of(trained_), without_clipping(options))),
      shard_(model, *optimizer_, ranks.connect(),
             {.stage = stage, .deadline = ranks.deadline(), .buffers = Buffers::of_each_rank}),
      inside_(shard_) {
  for (size_t i = 0; i < inside_.parameters().size(); ++i)
    indices_.emplace(inside_.parameters()[i].unsafeGetTensorImpl(), i);
  inside_.forget_model();
}

void ShardedUpdates::begin_step(double rate) {
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

void ShardedUpdates::before_backward(bool final) {
  if (final) {
    accumulating_.reset();
  } else if (!accumulating_) {
    accumulating_.emplace(shard_);
  }
}

double ShardedUpdates::finish_step() {
  accumulating_.reset();
  const bool clips = options_.max_norm > 0;
  const double norm =
      shard_.clip_grad_norm_(clips ? options_.max_norm : std::numeric_limits<double>::max());
  if (clips && !std::isfinite(norm)) {
    if (ranks_.is_first()) TORCH_WARN("bottomless: a step was left out: a gradient is not finite");
    optimizer_->zero_grad();
  }
  shard_.step();
  return norm;
}

const ShardedUpdates::States* ShardedUpdates::states_of(size_t index) const {
  const auto found = optimizer_->state().find(slice_of(index).unsafeGetTensorImpl());
  return found == optimizer_->state().end()
             ? nullptr
             : &static_cast<const optim::ParamState&>(*found->second).tensors;
}

void ShardedUpdates::label(Runtime& runtime) const {
  for (const NamedTensor& named : trained_) {
    const size_t index = index_of(named.tensor);
    if (slice_of(index).numel() == 0) continue;
    runtime.label(slice_of(index).storage().data(), "parameter");
    if (const States* states = states_of(index)) {
      for (const auto& [name, tensor] : *states) runtime.label(tensor.storage().data(), "state");
    }
  }
}

// In bytes of elements of this size.
std::vector<Share> ShardedUpdates::shares_of(size_t index, Bytes element) const {
  std::vector<Share> shares = inside_.sharding().shares(index);
  const auto own = static_cast<Bytes>(inside_.parameters()[index].element_size());
  for (Share& share : shares) share = {share.begin / own * element, share.end / own * element};
  return shares;
}

json ShardedUpdates::describe_states() const {
  json described = json::object();
  for (const NamedTensor& named : trained_) {
    const States* states = states_of(index_of(named.tensor));
    if (states == nullptr) continue;
    const torch::Tensor& slice = slice_of(index_of(named.tensor));
    for (const auto& [state, tensor] : *states) {
      const bool is_part = tensor.dim() > 0 && tensor.sizes() == slice.sizes();
      described[named.name][state] = {
          {"dtype", *file_dtype(tensor.scalar_type())},
          {"shape", is_part ? named.tensor.sizes().vec() : tensor.sizes().vec()}};
    }
  }
  return described;
}

LogicalTensor ShardedUpdates::logical_parameter(const NamedTensor& named) const {
  return {spec_of(named, named.tensor.scalar_type()), named.tensor.strides().vec(),
          inside_.sharding().shares(index_of(named.tensor))};
}

LogicalTensor ShardedUpdates::logical_state(const NamedTensor& parameter, const std::string& state,
                                            Dtype dtype, std::vector<uint64_t> shape) const {
  const size_t index = index_of(parameter.tensor);
  const Bytes element = bytes_of(dtype);
  LogicalTensor logical{.spec = {state_name(state, parameter.name), dtype, std::move(shape)}};
  if (state.ends_with(kScales)) {  // shares end where blocks do
    logical.spec.shape = {optim::block_count(static_cast<size_t>(parameter.tensor.numel()))};
    logical.shares = shares_of(index, 1);
    for (Share& share : logical.shares) {
      if (share.bytes() == 0) continue;
      share = {share.begin / optim::kBlock * element, optim::block_count(share.end) * element};
    }
  } else if (is_part_of(parameter.tensor, logical.spec.shape)) {
    logical.shares = shares_of(index, element);
  } else {
    logical.shares =
        whole_share(*bytes_of(dtype, logical.spec.shape),
                    first_owner(inside_.sharding().shares(index)), inside_.sharding().ranks());
  }
  logical.strides = row_major(logical.spec.shape);
  return logical;
}

Result<void> ShardedUpdates::save(const std::filesystem::path& directory, uint64_t step,
                                  const NamedTensors& kept, const json& extra) {
  return attempt([&]() -> Result<void> {
    const torch::NoGradGuard no_grad;
    std::vector<json> described;
    for (const std::string& said : ranks_.all_gather(describe_states().dump()))
      described.push_back(json::parse(said));
    ShardedSave saving(inside_.sharding(), directory, step, ++saves_, Keep::last_two);
    for (const NamedTensor& named : kept)
      saving.add(logical_parameter(named), inside_.sharding().slice(index_of(named.tensor)));
    for (const NamedTensor& named : trained_) {
      const size_t index = index_of(named.tensor);
      const json& owners =
          described[static_cast<size_t>(first_owner(inside_.sharding().shares(index)))];
      if (!owners.contains(named.name)) continue;  // it has had no gradient yet
      for (const auto& [state, what] : owners.at(named.name).items()) {
        LogicalTensor logical = logical_state(named, state, what.at("dtype").get<Dtype>(),
                                              what.at("shape").get<std::vector<uint64_t>>());
        const bool has_part = logical.shares[static_cast<size_t>(shard_.rank())].bytes() > 0;
        saving.add(std::move(logical),
                   has_part ? with_own_storage(states_of(index)->at(state)) : torch::Tensor());
      }
    }
    saving.start(extra.dump());
    saving.wait();
    return {};
  });
}

Result<void> ShardedUpdates::check(const std::filesystem::path& directory,
                                   const NamedTensors& kept) const {
  return attempt([&]() -> Result<void> {
    const CheckpointReader reader(directory);
    for (const NamedTensor& named : kept) {
      const TensorSpec found = reader.find(named.name);
      if (found == spec_of(named, named.tensor.scalar_type())) continue;
      return Error{Code::invalid_argument, "load '" + named.name + "' from " + directory.string() +
                                               ": it has another shape or type there; resume with "
                                               "the options of the run that saved it"};
    }
    return {};
  });
}

void ShardedUpdates::read(const std::filesystem::path& directory,
                          const std::vector<TensorSpec>& saved, const NamedTensors& kept) {
  const torch::NoGradGuard no_grad;
  CheckpointReader reader(directory);
  const auto read_share = [&](const LogicalTensor& logical, const torch::Tensor& into) {
    const Share share = logical.shares[static_cast<size_t>(shard_.rank())];
    if (share.bytes() > 0) reader.read(logical.spec.name, logical.strides, share, into);
  };
  for (const NamedTensor& named : kept)
    read_share(logical_parameter(named), inside_.sharding().slice(index_of(named.tensor)));
  for (const NamedTensor& named : trained_) {
    const auto found = states_in(saved, named.name);
    const torch::Tensor& slice = slice_of(index_of(named.tensor));
    if (slice.numel() == 0 || found.empty()) continue;
    auto state = std::make_unique<optim::ParamState>();
    for (const auto& [name, spec] : found) {
      if (found.contains(name + kScales))
        std::tie(state->tensors[name], state->tensors[name + kScales]) =
            new_codes(slice, spec->dtype == Dtype::i8);
    }
    for (const auto& [name, spec] : found) {
      const bool is_part = is_part_of(named.tensor, spec->shape);
      const std::vector<int64_t> shape(spec->shape.begin(), spec->shape.end());
      torch::Tensor& into = state->tensors[name];
      if (!into.defined())
        into = is_part ? torch::empty_like(slice, *scalar_type(spec->dtype))
                       : torch::empty(shape, *scalar_type(spec->dtype));
      const torch::Tensor content = with_own_storage(into);
      if (is_part || name.ends_with(kScales)) {
        read_share(logical_state(named, name, spec->dtype, spec->shape), content);
      } else {
        reader.read_whole(spec->name, content);
      }
      if (!content.is_same(into)) into.copy_(content);
    }
    optimizer_->state()[slice.unsafeGetTensorImpl()] = std::move(state);
  }
}

Result<void> ShardedUpdates::load(const std::filesystem::path& directory,
                                  const std::vector<TensorSpec>& saved, const NamedTensors& kept) {
  // When all have agreed, nobody needs the old content any more.
  if (Result<void> checked = ranks_.agree(check(directory, kept)); !checked.ok()) return checked;
  inside_.sharding().begin_renewal();
  const Result<void> read_here = attempt([&]() -> Result<void> {
    read(directory, saved, kept);
    return {};
  });
  inside_.sharding().end_renewal();
  return ranks_.agree(read_here);
}

}  // namespace bottomless::train
