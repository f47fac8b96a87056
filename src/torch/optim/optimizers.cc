#include <bottomless/optim.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "optim/quantised.h"
#include "torch/optim/fused_states.h"
#include "torch/optim/optimizer_options.h"

namespace bottomless::optim {
namespace {

using torch::Tensor;
using OptionalTensor = std::optional<Tensor>;

// What an update is called with besides the rule's own numbers.
struct Call {
  Tensor parameter;
  Tensor gradient;
  std::map<std::string, Tensor>& tensors;
  double factor;
  bool stochastic;
  bool has_new_states;

  OptionalTensor get(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? OptionalTensor() : OptionalTensor(found->second);
  }
};

double start_of(const AdagradOptions& options) { return options.initial_accumulator_value(); }
template <class Options>
double start_of(const Options&) {
  return 0;
}

void update(const AdamOptions& options, Call call) {
  using Signature =
      Tensor&(Tensor&, const Tensor&, const OptionalTensor&, const Tensor&, const OptionalTensor&,
              const Tensor&, const OptionalTensor&, const Tensor&, double, double, double, double,
              double, bool, bool, bool, double, const OptionalTensor&, const OptionalTensor&);
  const auto [beta1, beta2] = options.betas();
  operator_of<Signature>("bottomless::adam_")
      .call(call.parameter, call.gradient, call.get("master"), call.tensors.at("exp_avg"),
            call.get("exp_avg" + kScales), call.tensors.at("exp_avg_sq"),
            call.get("exp_avg_sq" + kScales), call.tensors.at("step"), options.lr(), beta1, beta2,
            options.eps(), options.weight_decay(), options.decoupled(), options.maximize(),
            call.stochastic, call.factor, {}, {});
}

void update(const SGDOptions& options, Call call) {
  using Signature = Tensor&(Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                            const OptionalTensor&, const Tensor&, double, double, double, double,
                            bool, bool, bool, double, const OptionalTensor&, const OptionalTensor&);
  operator_of<Signature>("bottomless::sgd_")
      .call(call.parameter, call.gradient, call.get("master"), call.get("momentum_buffer"),
            call.get("momentum_buffer" + kScales), call.tensors.at("step"), options.lr(),
            options.momentum(), call.has_new_states ? 0 : options.dampening(),
            options.weight_decay(), options.nesterov(), options.maximize(), call.stochastic,
            call.factor, {}, {});
}

void update(const AdagradOptions& options, Call call) {
  using Signature = Tensor&(Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                            const OptionalTensor&, const Tensor&, double, double, double, double,
                            bool, bool, double, const OptionalTensor&, const OptionalTensor&);
  operator_of<Signature>("bottomless::adagrad_")
      .call(call.parameter, call.gradient, call.get("master"), call.tensors.at("sum"),
            call.get("sum" + kScales), call.tensors.at("step"), options.lr(), options.lr_decay(),
            options.eps(), options.weight_decay(), options.maximize(), call.stochastic, call.factor,
            {}, {});
}

void update(const LionOptions& options, Call call) {
  using Signature = Tensor&(Tensor&, const Tensor&, const OptionalTensor&, const Tensor&,
                            const OptionalTensor&, const Tensor&, double, double, double, double,
                            bool, bool, double, const OptionalTensor&, const OptionalTensor&);
  const auto [beta1, beta2] = options.betas();
  operator_of<Signature>("bottomless::lion_")
      .call(call.parameter, call.gradient, call.get("master"), call.tensors.at("exp_avg"),
            call.get("exp_avg" + kScales), call.tensors.at("step"), options.lr(), beta1, beta2,
            options.weight_decay(), options.maximize(), call.stochastic, call.factor, {}, {});
}

// The operator wants whole tensors in order; a layout of another kind (channels_last) is copied there and back.
void update(const AdafactorOptions& options, Call call) {
  using Signature = Tensor&(Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                            const OptionalTensor&, const OptionalTensor&, const Tensor&, double,
                            double, std::optional<double>, double, double, double, bool, double,
                            const OptionalTensor&, const OptionalTensor&);
  Tensor whole = call.parameter.contiguous();
  operator_of<Signature>("bottomless::adafactor_")
      .call(whole, call.gradient.contiguous(), call.get("master"), call.get("row_var"),
            call.get("col_var"), call.get("variance"), call.tensors.at("step"), options.lr(),
            options.beta2_decay(), options.eps1(), options.eps2(), options.d(),
            options.weight_decay(), options.maximize(), call.factor, {}, {});
  if (!whole.is_same(call.parameter)) call.parameter.copy_(whole);
}

double square_sum(const Tensor& gradient) {
  const auto sum = operator_of<Tensor(const Tensor&)>("bottomless::sum_of_squares");
  return sum.call(gradient.is_non_overlapping_and_dense() ? gradient : gradient.contiguous())
      .item<double>();
}

// What gradients are multiplied with; nothing if the step is to be left out.
template <class Options>
std::optional<double> clip_factor(const Options& options,
                                  const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  if (options.max_norm() == 0 && !options.skip_nonfinite()) return 1;
  double sum = 0;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t i = 0; i < groups[group].params().size(); ++i) {
      const Tensor& parameter = groups[group].params()[i];
      if (!parameter.grad().defined()) continue;
      const double squares = square_sum(parameter.grad());
      if (options.skip_nonfinite() && !std::isfinite(squares)) {
        TORCH_WARN("bottomless: a step was left out: the gradient of parameter ", i, " of group ",
                   group, ", of shape ", parameter.sizes(), ", is not finite");
        return std::nullopt;
      }
      sum += squares;
    }
  }
  if (options.max_norm() == 0) return 1;
  const double factor = options.max_norm() / (std::sqrt(sum) + 1e-6);
  return factor > 1 ? 1 : factor;  // NaN stays, as with torch
}

template <class Options>
void begin_states(const Options& options, const Tensor& parameter,
                  std::map<std::string, Tensor>& tensors) {
  for (const StateName& state : states_of(options)) {
    const double start = start_of(options);
    if (options.states() == States::eight_bits) {
      std::tie(tensors[state.name], tensors[state.name + kScales]) =
          new_codes(parameter, state.has_sign, start);
    } else {
      const auto dtype = options.states() == States::bfloat16 ? torch::kBFloat16 : torch::kFloat32;
      tensors[state.name] =
          torch::full_like(parameter, start, parameter.options().dtype(dtype).requires_grad(false));
    }
  }
}

void begin_states(const AdafactorOptions&, const Tensor& parameter,
                  std::map<std::string, Tensor>& tensors) {
  if (tensors.contains("master")) tensors["master"] = tensors["master"].contiguous();
  std::vector<int64_t> rows = parameter.sizes().vec(), columns = rows;
  if (parameter.dim() < 2) {
    tensors["variance"] = torch::zeros(rows, torch::kFloat32);
    return;
  }
  rows.end()[-1] = 1;
  columns.end()[-2] = 1;
  tensors["row_var"] = torch::zeros(rows, torch::kFloat32);
  tensors["col_var"] = torch::zeros(columns, torch::kFloat32);
}

template <class Options>
void begin(const Options& options, const Tensor& parameter,
           std::map<std::string, Tensor>& tensors) {
  tensors["step"] = torch::zeros({}, torch::kFloat32);
  if (options.master_weights() && parameter.scalar_type() != torch::kFloat32)
    tensors["master"] = parameter.detach().to(torch::kFloat32);
  begin_states(options, parameter, tensors);
}

template <class Options>
bool lacks_states(const Options&, const std::map<std::string, Tensor>&) {
  return false;
}
bool lacks_states(const SGDOptions& options, const std::map<std::string, Tensor>& tensors) {
  return options.momentum() != 0 && !tensors.contains("momentum_buffer");
}

bool rounds_by_chance(const AdafactorOptions&) { return false; }
template <class Options>
bool rounds_by_chance(const Options& options) {
  return options.states() == States::bfloat16;
}

// Before anything changes.
void check_parameter(const Tensor& parameter) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined()) return;
  TORCH_CHECK(!gradient.is_sparse(), "bottomless: sparse gradients need the optimizers of Python");
  for (const Tensor& tensor : {parameter, gradient}) {
    const auto type = tensor.scalar_type();
    TORCH_CHECK_TYPE(type == torch::kFloat32 || type == torch::kBFloat16 || type == torch::kFloat16,
                     "bottomless: a parameter or gradient of type ", type,
                     ": the optimizers take float32, bfloat16 and float16");
  }
  TORCH_CHECK_VALUE(
      parameter.is_non_overlapping_and_dense() && parameter.device().is_cpu(),
      "bottomless: a parameter that does not lie on the CPU, or is not dense in memory");
}

void check(bool fine, const char* what, double value) {
  TORCH_CHECK_VALUE(fine, "bottomless: an optimizer's ", what, " of ", value, " makes no sense");
}

void check_betas(const std::tuple<double, double>& betas) {
  const auto [beta1, beta2] = betas;
  check(beta1 >= 0 && beta1 < 1, "first beta", beta1);
  check(beta2 >= 0 && beta2 < 1, "second beta", beta2);
}
void check_rule(const AdamOptions& options) { check_betas(options.betas()); }
void check_rule(const LionOptions& options) { check_betas(options.betas()); }
void check_rule(const AdagradOptions& options) {
  check(options.lr_decay() >= 0, "lr_decay", options.lr_decay());
}
void check_rule(const AdafactorOptions& options) {
  check(options.beta2_decay() <= 0, "beta2_decay", options.beta2_decay());
  check(options.eps1().value_or(0) >= 0, "eps1", options.eps1().value_or(0));
  check(options.eps2() >= 0, "eps2", options.eps2());
  check(options.d() >= 1, "d", options.d());
}
void check_rule(const SGDOptions& options) {
  check(options.momentum() >= 0, "momentum", options.momentum());
  check(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0),
        "dampening with Nesterov momentum", options.dampening());
}

template <class Options>
void check_options(const Options& options) {
  check(options.lr() >= 0, "lr", options.lr());
  check(options.weight_decay() >= 0, "weight_decay", options.weight_decay());
  check(options.max_norm() >= 0, "max_norm", options.max_norm());
  check_rule(options);
}

}  // namespace

// Codes and their scales share a storage, which an archive would take for two of different types.
void ParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors) {
    const bool alone = tensor.nbytes() == tensor.storage().nbytes();
    archive.write(name, alone ? tensor : tensor.clone(), /*is_buffer=*/true);
  }
}
void ParamState::serialize(torch::serialize::InputArchive& archive) {
  tensors.clear();
  for (const std::string& name : archive.keys())
    archive.read(name, tensors[name], /*is_buffer=*/true);
  for (auto& [name, codes] : tensors) {
    const auto scales = tensors.find(name + kScales);
    if (scales == tensors.end()) continue;
    auto [new_ones, their_scales] = new_codes(codes, codes.scalar_type() == torch::kInt8, 0);
    codes = new_ones.copy_(codes);
    scales->second = their_scales.copy_(scales->second);
  }
}

// Without their options: torch's constructor would replace them by the defaults.
template <class Options>
Fused<Options>::Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                      Options defaults, Options unset)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(),
                std::make_unique<Options>(defaults)),
      unset_(std::move(unset)) {
  check_options(defaults);
  for (const auto& group : groups) add_param_group(group);
}

template <class Options>
void Fused<Options>::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::OptimizerParamGroup added(group.params());
  if (group.has_options()) {
    const auto* wanted = dynamic_cast<const Options*>(&group.options());
    TORCH_CHECK_TYPE(wanted != nullptr,
                     "bottomless: a parameter group has options of another optimizer");
    const auto& defaults = static_cast<const Options&>(this->defaults());
    auto options = std::make_unique<Options>(*wanted);
    inherit_options(*options, defaults, unset_);
    check_options(*options);
    TORCH_CHECK_VALUE(options->max_norm() == defaults.max_norm() &&
                          options->skip_nonfinite() == defaults.skip_nonfinite(),
                      "bottomless: max_norm and skip_nonfinite are of all gradients together: set "
                      "them for the optimizer, not for a group");
    Optimizer::add_param_group(added);
    param_groups_.back().set_options(std::move(options));
  } else {
    Optimizer::add_param_group(added);
  }
}

template <class Options>
torch::Tensor Fused<Options>::step(LossClosure closure) {
  const torch::NoGradGuard no_grad;
  Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  for (const auto& group : param_groups_) {
    for (const Tensor& parameter : group.params()) check_parameter(parameter);
  }
  const auto& defaults = static_cast<const Options&>(this->defaults());
  const std::optional<double> factor = clip_factor(defaults, param_groups_);
  if (!factor) return loss;
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const Options&>(group.options());
    for (Tensor& parameter : group.params()) {
      Tensor gradient = parameter.grad();
      if (!gradient.defined()) continue;
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (state == nullptr) {
        state = std::make_unique<ParamState>();
        begin(options, parameter, static_cast<ParamState&>(*state).tensors);
      }
      auto& tensors = static_cast<ParamState&>(*state).tensors;
      const bool is_late =
          lacks_states(options, tensors);  // momentum that was set after the first step
      if (is_late) begin_states(options, parameter, tensors);
      tensors.at("step").add_(1);
      if (gradient.strides() != parameter.strides())
        gradient = torch::empty_like(parameter, gradient.options()).copy_(gradient);
      update(options, {parameter, gradient, tensors, *factor, rounds_by_chance(options), is_late});
      parameter.unsafeGetTensorImpl()->bump_version();  // autograd must see that it changed
    }
  }
  return loss;
}

template <class Options>
void Fused<Options>::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<ParamState, Options>(archive, *this);
}

template <class Options>
void Fused<Options>::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<ParamState, Options>(archive, *this);
}

template class Fused<AdamOptions>;
template class Fused<SGDOptions>;
template class Fused<AdagradOptions>;
template class Fused<LionOptions>;
template class Fused<AdafactorOptions>;

}  // namespace bottomless::optim
