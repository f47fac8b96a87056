#include "torch/optim/optimizer_state.h"

#include <bottomless/optim.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torch/errors.h"
#include "torch/optim/fused_states.h"

namespace bottomless {
namespace {

using nlohmann::json;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

struct Epsilons {  // of Adafactor: one option in Python
  std::optional<double>& first;
  double& second;
};

// All options of any optimizer, for all directions: C++ and Python have the same names.
template <class Options, class Visit>
void each_option(Options& its, Visit visit) {
  visit("lr", its.lr());
  visit("weight_decay", its.weight_decay());
  if constexpr (requires { its.betas(); }) visit("betas", its.betas());
  if constexpr (requires { its.eps(); }) visit("eps", its.eps());
  if constexpr (requires { its.amsgrad(); }) visit("amsgrad", its.amsgrad());
  if constexpr (requires { its.momentum(); }) visit("momentum", its.momentum());
  if constexpr (requires { its.dampening(); }) visit("dampening", its.dampening());
  if constexpr (requires { its.nesterov(); }) visit("nesterov", its.nesterov());
  if constexpr (requires { its.alpha(); }) visit("alpha", its.alpha());
  if constexpr (requires { its.centered(); }) visit("centered", its.centered());
  if constexpr (requires { its.lr_decay(); }) visit("lr_decay", its.lr_decay());
  if constexpr (requires { its.initial_accumulator_value(); })
    visit("initial_accumulator_value", its.initial_accumulator_value());
  if constexpr (requires { its.decoupled(); }) visit("decoupled_weight_decay", its.decoupled());
  if constexpr (requires { its.maximize(); }) visit("maximize", its.maximize());
  if constexpr (requires { its.beta2_decay(); }) visit("beta2_decay", its.beta2_decay());
  if constexpr (requires { its.eps1(); }) visit("eps", Epsilons{its.eps1(), its.eps2()});
  if constexpr (requires { its.d(); }) visit("d", its.d());
}

// Likewise the states of torch's.
template <class State, class Visit>
void each_state(State& its, Visit visit) {
  if constexpr (requires { its.step(); }) visit("step", its.step());
  if constexpr (requires { its.exp_avg(); }) visit("exp_avg", its.exp_avg());
  if constexpr (requires { its.exp_avg_sq(); }) visit("exp_avg_sq", its.exp_avg_sq());
  if constexpr (requires { its.max_exp_avg_sq(); }) visit("max_exp_avg_sq", its.max_exp_avg_sq());
  if constexpr (requires { its.square_avg(); }) visit("square_avg", its.square_avg());
  if constexpr (requires { its.momentum_buffer(); })
    visit("momentum_buffer", its.momentum_buffer());
  if constexpr (requires { its.grad_avg(); }) visit("grad_avg", its.grad_avg());
  if constexpr (requires { its.sum(); }) visit("sum", its.sum());
}

torch::optim::AdamParamState new_state(const torch::optim::AdamOptions&) { return {}; }
torch::optim::AdamWParamState new_state(const torch::optim::AdamWOptions&) { return {}; }
torch::optim::SGDParamState new_state(const torch::optim::SGDOptions&) { return {}; }
torch::optim::RMSpropParamState new_state(const torch::optim::RMSpropOptions&) { return {}; }
torch::optim::AdagradParamState new_state(const torch::optim::AdagradOptions&) { return {}; }

// What an update with these options cannot do without.
template <class Options>
bool needs(const Options& options, const std::string& state) {
  if constexpr (requires { options.amsgrad(); })
    return state != "max_exp_avg_sq" || options.amsgrad();
  if constexpr (requires { options.momentum(); }) {
    if (state == "momentum_buffer") return options.momentum() != 0;
  }
  if constexpr (requires { options.centered(); }) {
    if (state == "grad_avg") return options.centered();
  }
  return true;
}

// Calls `work` with the object as what it is; false if it is none of these.
template <class... Types, class Base, class Work>
bool as_one_of(Base& object, Work work) {
  const auto as = [&]<class Type>(Type* its) {
    if (its != nullptr) work(*its);
    return its != nullptr;
  };
  return (as(dynamic_cast<Types*>(&object)) || ...);
}

template <class Work>
bool as_options_of_torch(OptimizerOptions& options, Work work) {
  return as_one_of<torch::optim::AdamOptions, torch::optim::AdamWOptions, torch::optim::SGDOptions,
                   torch::optim::RMSpropOptions, torch::optim::AdagradOptions>(options, work);
}
template <class Work>
bool as_options_of_ours(OptimizerOptions& options, Work work) {
  return as_one_of<optim::AdamOptions, optim::SGDOptions, optim::AdagradOptions, optim::LionOptions,
                   optim::AdafactorOptions>(options, work);
}
template <class Work>
bool as_options(OptimizerOptions& options, Work work) {
  return as_options_of_torch(options, work) || as_options_of_ours(options, work);
}

[[noreturn]] void refuse_unknown() {
  refuse(
      "its states and options are not known by name; torch's Adam, AdamW, SGD, RMSprop and "
      "Adagrad and those of <bottomless/optim.h> can be saved");
}

// Numbers in the manifest's JSON: plain, or as _shard_checkpoint.py writes what JSON has not.

double number_of(const json& saved) {
  if (saved.is_number()) return saved.get<double>();
  if (saved.is_object() && saved.contains("tensor")) return number_of(saved["tensor"]);
  if (saved.is_object() && saved.contains("float"))
    return std::stod(saved["float"].get<std::string>());
  refuse("an option of the optimizer is " + saved.dump() + ", wanted a number");
}

json number(double value) {
  if (std::isfinite(value)) return value;
  return {{"float", std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"}};
}

json written(double value) { return number(value); }
json written(bool value) { return value; }
json written(const std::tuple<double, double>& value) {
  return {{"tuple", {number(std::get<0>(value)), number(std::get<1>(value))}}};
}
json written(const Epsilons& value) {
  return {{"tuple", {value.first ? number(*value.first) : json(), number(value.second)}}};
}

const json& pair_of(const json& saved) {
  const json& listed = saved.is_object() && saved.contains("tuple") ? saved["tuple"] : saved;
  if (!listed.is_array() || listed.size() != 2)
    refuse("an option of the optimizer is " + saved.dump() + ", wanted two numbers");
  return listed;
}

void take(double& to, const json& saved) { to = number_of(saved); }
void take(bool& to, const json& saved) {
  if (!saved.is_boolean())
    refuse("an option of the optimizer is " + saved.dump() + ", wanted a switch");
  to = saved.get<bool>();
}
void take(std::tuple<double, double>& to, const json& saved) {
  const json& both = pair_of(saved);
  to = {number_of(both[0]), number_of(both[1])};
}
void take(const Epsilons& to, const json& saved) {
  const json& both = pair_of(saved);
  to.first = both[0].is_null() ? std::nullopt : std::optional<double>(number_of(both[0]));
  to.second = number_of(both[1]);
}

bool is_set(const json& option) {
  return !(option.is_null() || option == json(false) || (option.is_number() && option == 0));
}

// Options of Python that change nothing about the result, or that belong to its schedulers.
bool is_pythons_own(const std::string& name) {
  constexpr std::array<std::string_view, 5> kNames = {"foreach", "fused", "capturable",
                                                      "differentiable", "initial_lr"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// States of <bottomless/optim.h>.

at::Tensor decoded(const at::Tensor& codes, const at::Tensor& scales) {
  using Signature = at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&);
  at::Tensor values = at::empty_like(codes, codes.options().dtype(at::kFloat));
  optim::operator_of<Signature>("bottomless::decode_").call(values, codes, scales);
  return values;
}

PlainState plain_state(const optim::ParamState& state) {
  PlainState plain;
  for (const auto& [name, tensor] : state.tensors) {
    const auto scales = state.tensors.find(name + optim::kScales);
    if (scales != state.tensors.end()) {
      plain.emplace(name, decoded(tensor, scales->second));
    } else if (!name.ends_with(optim::kScales)) {
      plain.emplace(name, tensor);
    }
  }
  return plain;
}

template <class Options>
void put(const Options& options, const at::Tensor& parameter, const optim::StateName& state,
         at::Tensor saved, std::map<std::string, at::Tensor>& tensors) {
  if (options.states() != optim::States::eight_bits) {
    const bool narrow = options.states() == optim::States::bfloat16;
    tensors[state.name] = saved.to(narrow ? at::kBFloat16 : at::kFloat);
    return;
  }
  using Signature = at::Tensor&(at::Tensor&, const at::Tensor&, const at::Tensor&);
  auto [codes, scales] = optim::new_codes(parameter, state.has_sign, 0);
  optim::operator_of<Signature>("bottomless::encode_").call(codes, scales, saved.to(at::kFloat));
  tensors[state.name] = codes;
  tensors[state.name + optim::kScales] = scales;
}

std::vector<std::string> names_of(const optim::AdafactorOptions&, const at::Tensor& parameter) {
  if (parameter.dim() < 2) return {"variance"};
  return {"row_var", "col_var"};
}
template <class Options>
std::vector<std::string> names_of(const Options& options, const at::Tensor&) {
  std::vector<std::string> names;
  for (const optim::StateName& state : optim::states_of(options)) names.push_back(state.name);
  return names;
}

void put_states(const optim::AdafactorOptions& options, const at::Tensor& parameter,
                const PlainState& saved, std::map<std::string, at::Tensor>& tensors) {
  for (const std::string& name : names_of(options, parameter))
    tensors[name] = saved.at(name).to(at::kFloat);
}
template <class Options>
void put_states(const Options& options, const at::Tensor& parameter, const PlainState& saved,
                std::map<std::string, at::Tensor>& tensors) {
  for (const optim::StateName& state : optim::states_of(options)) {
    const auto found = saved.find(state.name);
    if (found != saved.end()) put(options, parameter, state, found->second, tensors);
  }
}

template <class Options>
std::unique_ptr<OptimizerParamState> fused_state(const Options& options,
                                                 const at::Tensor& parameter,
                                                 const PlainState& saved) {
  auto state = std::make_unique<optim::ParamState>();
  const auto step = saved.find("step");  // torch's SGD counts none
  state->tensors["step"] = step == saved.end()
                               ? torch::ones({}, at::kFloat)
                               : torch::full({}, step->second.item<double>(), at::kFloat);
  if (options.master_weights() && parameter.scalar_type() != at::kFloat) {
    const auto master = saved.find("master");
    state->tensors["master"] =
        (master == saved.end() ? parameter.detach() : master->second).to(at::kFloat);
  }
  put_states(options, parameter, saved, state->tensors);
  return state;
}

}  // namespace

PlainState plain_state(OptimizerParamState& state) {
  if (const auto* ours = dynamic_cast<const optim::ParamState*>(&state)) return plain_state(*ours);
  PlainState plain;
  const auto note = [&](const char* name, auto& value) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
      if (value.defined()) plain.emplace(name, value);
    } else {
      plain.emplace(name, torch::full({}, static_cast<double>(value), at::kFloat));
    }
  };
  const bool known =
      as_one_of<torch::optim::AdamParamState, torch::optim::AdamWParamState,
                torch::optim::SGDParamState, torch::optim::RMSpropParamState,
                torch::optim::AdagradParamState>(state, [&](auto& its) { each_state(its, note); });
  if (!known) refuse_unknown();
  return plain;
}

std::unique_ptr<OptimizerParamState> state_from(OptimizerOptions& options,
                                                const at::Tensor& parameter, PlainState saved) {
  std::unique_ptr<OptimizerParamState> made;
  const bool is_ours = as_options_of_ours(
      options, [&](const auto& its) { made = fused_state(its, parameter, saved); });
  const bool is_torchs = as_options_of_torch(options, [&](const auto& its) {
    auto state = std::make_unique<decltype(new_state(its))>();
    bool has_any = false;
    each_state(*state, [&](const char* name, auto& value) {
      const auto found = saved.find(name);
      if (found == saved.end()) return;
      has_any = true;
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, at::Tensor>) {
        value = std::move(found->second);
      } else {
        value = found->second.template item<int64_t>();
      }
    });
    if (has_any) made = std::move(state);
  });
  if (!is_ours && !is_torchs) refuse_unknown();
  return made;
}

void check_state(OptimizerOptions& options, const at::Tensor& of_parameter,
                 const std::vector<std::string>& names) {
  std::vector<std::string> needed;
  // What others count, and keep for options that were set at some time.
  std::vector<std::string> known = {"step", "momentum_buffer"};
  const auto is_in = [](const std::vector<std::string>& all, const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  const bool is_ours = as_options_of_ours(options, [&](const auto& its) {
    needed = names_of(its, of_parameter);
    known.emplace_back("master");
    known.insert(known.end(), needed.begin(), needed.end());
  });
  const bool is_torchs = as_options_of_torch(options, [&](const auto& its) {
    auto state = new_state(its);
    each_state(state, [&](const char* name, auto&) {
      known.emplace_back(name);
      if (needs(its, name)) needed.emplace_back(name);
    });
  });
  if (!is_ours && !is_torchs) refuse_unknown();
  for (const std::string& name : names) {
    if (!is_in(known, name)) refuse("this optimizer has no state '" + name + "'");
  }
  for (const std::string& name : needed) {
    if (!is_in(names, name)) refuse("this optimizer needs a state '" + name + "'");
  }
}

nlohmann::json plain_options(OptimizerOptions& options) {
  json plain = json::object();
  const bool known = as_options(options, [&](auto& its) {
    each_option(its, [&](const char* name, const auto& value) { plain[name] = written(value); });
  });
  if (!known) refuse_unknown();
  return plain;
}

void set_options(OptimizerOptions& options, const json& saved) {
  const bool known = as_options(options, [&](auto& its) {
    std::vector<std::string> names;
    // That is what AdamW is.
    if (std::is_same_v<std::decay_t<decltype(its)>, torch::optim::AdamWOptions>)
      names.emplace_back("decoupled_weight_decay");
    each_option(its, [&](const char* name, const auto&) { names.emplace_back(name); });
    for (const auto& [name, value] : saved.items()) {
      const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
      if (!is_known && !is_pythons_own(name) && is_set(value))
        refuse("this optimizer has no option '" + name + "', which is set in the checkpoint");
    }
    each_option(its, [&](const char* name, auto&& value) {
      if (saved.contains(name)) take(value, saved[name]);
    });
  });
  if (!known) refuse_unknown();
}

}  // namespace bottomless
