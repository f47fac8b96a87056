// What C++ optimizers know of a parameter, and the options of their groups, by the names and in the form that checkpoints
// have for Python's: either loads what the other has saved. Known are torch's Adam, AdamW, SGD, RMSprop and Adagrad, and
// those of <bottomless/optim.h>.
// Thread-safety: free functions without state. Errors are thrown as torch's.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace bottomless {

// By name; numbers, as the count of steps, are tensors without dimensions. Those of 8 bits are decoded.
using PlainState = std::map<std::string, at::Tensor>;

PlainState plain_state(torch::optim::OptimizerParamState& state);  // shares its tensors

// That of a parameter in a group with these options, in the format that these say; null where nothing of it is kept.
std::unique_ptr<torch::optim::OptimizerParamState> state_from(
    torch::optim::OptimizerOptions& options, const at::Tensor& parameter, PlainState saved);
// Throws where state_from() would have no use for it, or lack something. `of_parameter` has its shape.
void check_state(torch::optim::OptimizerOptions& options, const at::Tensor& of_parameter,
                 const std::vector<std::string>& names);

// An object with Python's names.
nlohmann::json plain_options(torch::optim::OptimizerOptions& options);
// Takes those over that it has; throws where one is set that it does not have.
void set_options(torch::optim::OptimizerOptions& options, const nlohmann::json& saved);

}  // namespace bottomless
