#include "train/updates/updates.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include <cstdlib>
#include <map>
#include <utility>

namespace bottomless::train {
namespace {

using Parameters = std::vector<torch::Tensor>;
using Optimizer = torch::optim::Optimizer;
using Factory = std::unique_ptr<Optimizer> (*)(const Parameters&, const UpdateOptions&);

const std::string kPrefix = "optimizer.";

template <class Rule, class Options>
std::unique_ptr<Optimizer> make(const Parameters& parameters, Options options,
                                const UpdateOptions& wanted) {
  options.max_norm(wanted.max_norm);
  options.skip_nonfinite(wanted.max_norm > 0);
  Parameters matrices, vectors;
  for (const torch::Tensor& parameter : parameters)
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(matrices), std::make_unique<Options>(options));
  static_cast<Options&>(groups.back().options()).weight_decay(wanted.weight_decay);
  options.weight_decay(0);
  groups.emplace_back(std::move(vectors), std::make_unique<Options>(options));
  return std::make_unique<Rule>(groups, options);
}

optim::AdamOptions adam(const UpdateOptions& wanted, bool decoupled) {
  return optim::AdamOptions()
      .betas({wanted.beta1, wanted.beta2})
      .decoupled(decoupled)
      .states(wanted.states);
}

const std::map<std::string, Factory>& factories() {
  using Wanted = UpdateOptions;
  static const std::map<std::string, Factory> all = {
      {"adamw",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::Adam>(all, adam(wanted, true), wanted);
       }},
      {"adam",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::Adam>(all, adam(wanted, false), wanted);
       }},
      {"sgd",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::SGD>(
             all, optim::SGDOptions().momentum(wanted.momentum).states(wanted.states), wanted);
       }},
      {"adagrad",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::Adagrad>(all, optim::AdagradOptions().states(wanted.states), wanted);
       }},
      {"lion",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::Lion>(
             all, optim::LionOptions().betas({wanted.beta1, wanted.beta2}).states(wanted.states),
             wanted);
       }},
      {"adafactor",
       [](const Parameters& all, const Wanted& wanted) {
         return make<optim::Adafactor>(all, optim::AdafactorOptions(), wanted);
       }},
  };
  return all;
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

int64_t layer_of(const std::string& parameter_name) {
  for (size_t dot = parameter_name.find('.'); dot != std::string::npos;
       dot = parameter_name.find('.', dot + 1)) {
    char* end = nullptr;
    const char* begin = parameter_name.c_str() + dot + 1;
    const int64_t number = std::strtoll(begin, &end, 10);
    if (end != begin && *end == '.') return number;
  }
  return -1;
}

std::unique_ptr<Optimizer> make_optimizer(const Parameters& parameters,
                                          const UpdateOptions& options) {
  return factories().at(options.optimizer)(parameters, options);
}

std::tuple<torch::Tensor, torch::Tensor> new_codes(const torch::Tensor& like, bool has_sign) {
  using Signature = std::tuple<torch::Tensor, torch::Tensor>(const torch::Tensor&, bool, double);
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("bottomless::new_codes", "")
      .typed<Signature>()
      .call(like, has_sign, 0);
}

std::string state_name(const std::string& state, const std::string& parameter) {
  return kPrefix + state + "." + parameter;
}

std::map<std::string, const TensorSpec*> states_in(const std::vector<TensorSpec>& saved,
                                                   const std::string& parameter) {
  std::map<std::string, const TensorSpec*> states;
  for (const TensorSpec& spec : saved) {
    if (!spec.name.starts_with(kPrefix)) continue;
    const size_t dot = spec.name.find('.', kPrefix.size());  // no state has one in its name
    if (spec.name.compare(dot + 1, std::string::npos, parameter) == 0)
      states[spec.name.substr(kPrefix.size(), dot - kPrefix.size())] = &spec;
  }
  return states;
}

Updates::~Updates() = default;

}  // namespace bottomless::train
