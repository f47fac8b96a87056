#include "torch/checkpoint/training_form.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <unordered_map>

#include "checkpoint/strict_json.h"
#include "torch/dtypes.h"

namespace bottomless {

using nlohmann::json;

std::vector<json> exchange(Sharding& sharding, const json& own) {
  std::vector<json> said;
  const std::string text = checked(write_json(own, -1, "tell other ranks of a checkpoint"));
  for (const std::string& each : sharding.exchange_texts(text)) said.push_back(json::parse(each));
  return said;
}

std::optional<Error> problem_of_any(const std::vector<json>& everybody,
                                    const std::string& attempted) {
  for (size_t rank = 0; rank < everybody.size(); ++rank) {
    const auto problem = everybody[rank].at("problem").get<std::string>();
    if (!problem.empty())
      return Error{Code::io, attempted + ": rank " + std::to_string(rank) + ": " + problem};
  }
  return std::nullopt;
}

json encoded(const json& value) {
  json result = value;
  if (value.is_array()) {
    for (json& item : result) item = encoded(item);
  } else if (value.is_object()) {
    for (auto& [key, item] : result.items()) item = encoded(item);
    return {{"dict", std::move(result)}};
  }
  return result;
}

json decoded(const json& value) {
  json result = value;
  if (value.is_array()) {
    for (json& item : result) item = decoded(item);
  } else if (value.is_object() && value.contains("dict")) {
    result = value["dict"];
    for (auto& [key, item] : result.items()) item = decoded(item);
  } else if (value.is_object()) {
    for (const char* name : {"tuple", "tensor", "float", "dtype"}) {
      if (value.contains(name)) return decoded(value[name]);
    }
  }
  return result;
}

json encoded_scalar(const at::Tensor& scalar, const std::string& name) {
  const std::optional<Dtype> dtype = dtype_of(scalar.scalar_type());
  const auto value = scalar.item<double>();
  if (!dtype || !std::isfinite(value)) refuse("save '" + name + "': it cannot be written as JSON");
  return {{"tensor", value}, {"dtype", name_of(*dtype)}};
}

at::Tensor scalar_of(const json& saved) {
  at::ScalarType type = at::kFloat;
  if (saved.is_object() && saved.contains("dtype"))
    type = scalar_type_of(dtype_named(saved["dtype"].get<std::string>()).value());
  const json value = decoded(saved);
  if (!value.is_number())
    refuse("a state of the optimizer is " + saved.dump() + ", wanted a number");
  return at::full({}, value.get<double>(), type);
}

std::string parameter_name(const ShardedTraining& training, size_t index) {
  return (index < training.of_model ? "model." : "beside.") + training.names[index];
}

Tensors pairs_of(const torch::OrderedDict<std::string, at::Tensor>& named) {
  Tensors pairs;
  for (const auto& item : named) pairs.emplace_back(item.key(), item.value());
  return pairs;
}

std::map<std::string, std::string> aliases_of(const torch::nn::Module& model) {
  std::unordered_map<const at::TensorImpl*, std::string> first;
  std::map<std::string, std::string> aliases;
  for (const Tensors& named :
       {pairs_of(model.named_parameters()), pairs_of(model.named_buffers())}) {
    for (const auto& [name, tensor] : named) {
      const auto [known, is_new] = first.emplace(tensor.unsafeGetTensorImpl(), name);
      if (!is_new) aliases.emplace(name, known->second);
    }
  }
  return aliases;
}

Tensors own_buffers(const torch::nn::Module& model) {
  const auto aliases = aliases_of(model);
  Tensors buffers = pairs_of(model.named_buffers());
  std::erase_if(buffers, [&](const auto& buffer) { return aliases.contains(buffer.first); });
  return buffers;
}

json names_of_group(const ShardedTraining& training, size_t group) {
  json names = json::array();
  for (const size_t index : training.groups[group]) names.push_back(training.names[index]);
  return names;
}

std::vector<Share> shares_of(const ShardedTraining& training, size_t index, at::ScalarType type) {
  const auto from = static_cast<Bytes>(training.parameters[index].element_size());
  const auto to = static_cast<Bytes>(c10::elementSize(type));
  std::vector<Share> shares = training.sharding.shares(index);
  for (Share& share : shares) share = {share.begin / from * to, share.end / from * to};
  return shares;
}

}  // namespace bottomless
