// How the options of optimizers are saved, loaded and inherited.
#include "torch/optim/optimizer_options.h"

#include <torch/torch.h>

#include <optional>

namespace bottomless::optim {
namespace {

constexpr double kNone = -1;  // as an eps1: that of the parameter's type

// One list for all directions: visit(name, get) for each option, where get(options) is a reference to it.
#define BOTTOMLESS_VISIT(name) \
  visit(                       \
      #name, [](auto& options) -> auto& { return options.name(); })

template <class Visit>
void each_common(const Visit& visit) {
  BOTTOMLESS_VISIT(lr);
  BOTTOMLESS_VISIT(weight_decay);
  BOTTOMLESS_VISIT(maximize);
  BOTTOMLESS_VISIT(master_weights);
  BOTTOMLESS_VISIT(max_norm);
  BOTTOMLESS_VISIT(skip_nonfinite);
}

template <class Visit>
void each_option(const AdamOptions&, const Visit& visit) {
  each_common(visit);
  BOTTOMLESS_VISIT(states);
  BOTTOMLESS_VISIT(betas);
  BOTTOMLESS_VISIT(eps);
  BOTTOMLESS_VISIT(decoupled);
}

template <class Visit>
void each_option(const SGDOptions&, const Visit& visit) {
  each_common(visit);
  BOTTOMLESS_VISIT(states);
  BOTTOMLESS_VISIT(momentum);
  BOTTOMLESS_VISIT(dampening);
  BOTTOMLESS_VISIT(nesterov);
}

template <class Visit>
void each_option(const AdagradOptions&, const Visit& visit) {
  each_common(visit);
  BOTTOMLESS_VISIT(states);
  BOTTOMLESS_VISIT(lr_decay);
  BOTTOMLESS_VISIT(initial_accumulator_value);
  BOTTOMLESS_VISIT(eps);
}

template <class Visit>
void each_option(const LionOptions&, const Visit& visit) {
  each_common(visit);
  BOTTOMLESS_VISIT(states);
  BOTTOMLESS_VISIT(betas);
}

template <class Visit>
void each_option(const AdafactorOptions&, const Visit& visit) {
  each_common(visit);
  BOTTOMLESS_VISIT(beta2_decay);
  BOTTOMLESS_VISIT(eps1);
  BOTTOMLESS_VISIT(eps2);
  BOTTOMLESS_VISIT(d);
}
#undef BOTTOMLESS_VISIT

using Betas = std::tuple<double, double>;

struct Writing {
  torch::serialize::OutputArchive& archive;
  void number(const char* name, double value) const { archive.write(name, c10::IValue(value)); }

  void operator()(const char* name, double value) const { number(name, value); }
  void operator()(const char* name, bool value) const { number(name, value); }
  void operator()(const char* name, States value) const {
    number(name, static_cast<double>(value));
  }
  void operator()(const char* name, const std::optional<double>& value) const {
    number(name, value.value_or(kNone));
  }
  void operator()(const char*, const Betas& betas) const {
    number("beta1", std::get<0>(betas));
    number("beta2", std::get<1>(betas));
  }
};

struct Reading {
  torch::serialize::InputArchive& archive;
  double number(const char* name) const {
    c10::IValue value;
    archive.read(name, value);
    return value.toDouble();
  }

  void operator()(const char* name, double& value) const { value = number(name); }
  void operator()(const char* name, bool& value) const { value = number(name) != 0; }
  void operator()(const char* name, States& value) const {
    value = static_cast<States>(static_cast<int64_t>(number(name)));
  }
  void operator()(const char* name, std::optional<double>& value) const {
    const double found = number(name);
    value = found == kNone ? std::nullopt : std::optional(found);
  }
  void operator()(const char*, Betas& betas) const { betas = {number("beta1"), number("beta2")}; }
};

template <class Options>
void write_options(const Options& options, torch::serialize::OutputArchive& archive) {
  const Writing to{archive};
  each_option(options, [&](const char* name, const auto& get) { to(name, get(options)); });
}

template <class Options>
void read_options(Options& options, torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  each_option(options, [&](const char* name, const auto& get) { from(name, get(options)); });
}

}  // namespace

template <class Options>
void inherit_options(Options& options, const Options& defaults, const Options& unset) {
  each_option(options, [&](const char*, const auto& get) {
    if (get(options) == get(unset)) get(options) = get(defaults);
  });
}

#define BOTTOMLESS_DEFINE(Options)                                          \
  void Options::serialize(torch::serialize::OutputArchive& archive) const { \
    write_options(*this, archive);                                          \
  }                                                                         \
  void Options::serialize(torch::serialize::InputArchive& archive) {        \
    read_options(*this, archive);                                           \
  }                                                                         \
  template void inherit_options(Options& options, const Options& defaults, const Options& unset)
BOTTOMLESS_DEFINE(AdamOptions);
BOTTOMLESS_DEFINE(SGDOptions);
BOTTOMLESS_DEFINE(AdagradOptions);
BOTTOMLESS_DEFINE(LionOptions);
BOTTOMLESS_DEFINE(AdafactorOptions);
#undef BOTTOMLESS_DEFINE

}  // namespace bottomless::optim
