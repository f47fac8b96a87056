// Optimizers whose update is one pass over memory, with the rules and options of torch::optim, for parameters of float32,
// bfloat16 and float16, with states of 32, 16 or 8 bits. They need no Runtime; under one, states and master weights are
// tensors like all others. docs/optimizers.md says what narrow states save and cost.
//
//   bottomless::optim::AdamW optimizer(model->parameters(),
//       bottomless::optim::AdamWOptions(1e-4).states(bottomless::optim::States::eight_bits));
//
// Thread-safety: that of torch::optim::Optimizer: one thread at a time.
// Lifetime: as torch's, an optimizer keeps its parameters alive.
#pragma once
#include <torch/optim/optimizer.h>
#include <torch/optim/serialize.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace bottomless::optim {

enum class States : int64_t { float32, bfloat16, eight_bits };

// Of every optimizer: float32 copies of parameters that have 16 bits; gradients are clipped to this norm, 0: never; whether
// a step is left out if a gradient is not finite.
#define BOTTOMLESS_OPTIM_COMMON(Options)                            \
  TORCH_ARG(bool, master_weights) = true;                           \
  TORCH_ARG(double, max_norm) = 0;                                  \
  TORCH_ARG(bool, skip_nonfinite) = false;                          \
                                                                    \
 public:                                                            \
  explicit Options(double lr) : lr_(lr) {}                          \
  Options() = default;                                              \
  double get_lr() const override { return lr_; }                    \
  void set_lr(double lr) override { lr_ = lr; }                     \
  void serialize(torch::serialize::InputArchive& archive) override; \
  void serialize(torch::serialize::OutputArchive& archive) const override

// Of every one but Adafactor: the format of its states.
#define BOTTOMLESS_OPTIM_FORMATS(Options)      \
  TORCH_ARG(States, states) = States::float32; \
  BOTTOMLESS_OPTIM_COMMON(Options)

struct AdamOptions : torch::optim::OptimizerCloneableOptions<AdamOptions> {
  using Betas = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, decoupled) = false;
  TORCH_ARG(bool, maximize) = false;
  BOTTOMLESS_OPTIM_FORMATS(AdamOptions);
};

struct AdamWOptions : AdamOptions {
  explicit AdamWOptions(double lr = 1e-3) : AdamOptions(lr) { weight_decay(1e-2).decoupled(true); }
};

struct SGDOptions : torch::optim::OptimizerCloneableOptions<SGDOptions> {
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, nesterov) = false;
  TORCH_ARG(bool, maximize) = false;
  BOTTOMLESS_OPTIM_FORMATS(SGDOptions);
};

struct AdagradOptions : torch::optim::OptimizerCloneableOptions<AdagradOptions> {
  TORCH_ARG(double, lr) = 1e-2;
  TORCH_ARG(double, lr_decay) = 0;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, initial_accumulator_value) = 0;
  TORCH_ARG(double, eps) = 1e-10;
  TORCH_ARG(bool, maximize) = false;
  BOTTOMLESS_OPTIM_FORMATS(AdagradOptions);
};

struct LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  using Betas = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-4;
  TORCH_ARG(Betas, betas) = {0.9, 0.99};
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, maximize) = false;
  BOTTOMLESS_OPTIM_FORMATS(LionOptions);
};

// That of torch.optim in Python; torch::optim has none. The states of a matrix are a float32 for each row and each column.
struct AdafactorOptions : torch::optim::OptimizerCloneableOptions<AdafactorOptions> {
  TORCH_ARG(double, lr) = 1e-2;
  TORCH_ARG(double, beta2_decay) = -0.8;
  TORCH_ARG(std::optional<double>, eps1) = std::nullopt;  // none: that of the type that is updated
  TORCH_ARG(double, eps2) = 1e-3;
  TORCH_ARG(double, d) = 1;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, maximize) = false;
  BOTTOMLESS_OPTIM_COMMON(AdafactorOptions);
};
#undef BOTTOMLESS_OPTIM_FORMATS
#undef BOTTOMLESS_OPTIM_COMMON

// A parameter's state: step, master, and what the rule keeps, by torch's names; 8-bit states have their scales beside them.
struct ParamState : torch::optim::OptimizerCloneableParamState<ParamState> {
  std::map<std::string, torch::Tensor> tensors;

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

// What all have in common. Not for use by itself.
// Options of a group: as with torch::optim, one that differs from what a new Options has holds for the group, the others are the
// optimizer's. max_norm and skip_nonfinite are of all gradients together; in a group other ones are refused.
template <class Options>
class Fused : public torch::optim::Optimizer {
 public:
  explicit Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 Options defaults = {})
      : Fused(groups, std::move(defaults), Options()) {}
  explicit Fused(std::vector<torch::Tensor> parameters, Options defaults = {})
      : Fused({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

  // Hides torch's, which knows the options of torch's own optimizers only and drops all others: do not call it through a
  // reference to torch::optim::Optimizer with a group that has options.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  // `unset`: what options of a group are before anybody sets them.
  Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults,
        Options unset);

 private:
  Options unset_;
};

extern template class Fused<AdamOptions>;
extern template class Fused<SGDOptions>;
extern template class Fused<AdagradOptions>;
extern template class Fused<LionOptions>;
extern template class Fused<AdafactorOptions>;

using Adam = Fused<AdamOptions>;
using SGD = Fused<SGDOptions>;
using Adagrad = Fused<AdagradOptions>;
using Lion = Fused<LionOptions>;
using Adafactor = Fused<AdafactorOptions>;

class AdamW : public Adam {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 AdamOptions defaults = AdamWOptions())
      : Adam(groups, std::move(defaults), AdamWOptions()) {}
  explicit AdamW(std::vector<torch::Tensor> parameters, AdamOptions defaults = AdamWOptions())
      : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}
};

}  // namespace bottomless::optim
