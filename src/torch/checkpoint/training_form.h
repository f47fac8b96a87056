// What saving and loading a Shard's training have in common: the names of its tensors, values in the form of
// python/bottomless/_shard_checkpoint.py, and what ranks tell each other about a checkpoint. For sources only.
// Thread-safety: free functions; those with a Sharding are for all ranks, in the same order. Errors are thrown as torch's.
#pragma once
#include <ATen/core/Tensor.h>

#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torch/errors.h"
#include "torch/shard/shard_training.h"

namespace bottomless {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

inline constexpr const char* kTrainingKind = "bottomless training";

// Tensors of the model.
std::string parameter_name(const ShardedTraining& training, size_t index);
Tensors pairs_of(const torch::OrderedDict<std::string, at::Tensor>& named);
// Names of tensors that have another one, too: tied weights.
std::map<std::string, std::string> aliases_of(const torch::nn::Module& model);
Tensors own_buffers(const torch::nn::Module& model);  // that are nobody's alias
nlohmann::json names_of_group(const ShardedTraining& training, size_t group);
// Shares of the parameter, for elements of another type.
std::vector<Share> shares_of(const ShardedTraining& training, size_t index, at::ScalarType type);

// JSON as Python's values, and back.
nlohmann::json encoded(const nlohmann::json& value);
nlohmann::json decoded(const nlohmann::json& value);
// Tensors without dimensions.
nlohmann::json encoded_scalar(const at::Tensor& scalar, const std::string& name);
at::Tensor scalar_of(const nlohmann::json& saved);

// What each rank says.
std::vector<nlohmann::json> exchange(Sharding& sharding, const nlohmann::json& own);
// The first "problem" that one has.
std::optional<Error> problem_of_any(const std::vector<nlohmann::json>& everybody,
                                    const std::string& attempted);
// What is wrong with doing it, if anything is.
template <class Work>
std::string problem_of(Work work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return caught(error).message;
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace bottomless
