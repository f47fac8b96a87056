// How the options of optimizers are saved and loaded.
#include <bottomless/optim.h>
#include <torch/torch.h>

#include <optional>

namespace bottomless::optim {
namespace {

constexpr double kNone = -1;  // as an eps1: that of the parameter's type

// Writes and reads an option by its name; the same list for both directions.
struct Writing {
  torch::serialize::OutputArchive& archive;
  void number(const char* name, double value) const { archive.write(name, c10::IValue(value)); }
};
struct Reading {
  torch::serialize::InputArchive& archive;
  double number(const char* name) const {
    c10::IValue value;
    archive.read(name, value);
    return value.toDouble();
  }
};

template <class Options>
void write_common(const Options& options, const Writing& to) {
  to.number("lr", options.lr());
  to.number("weight_decay", options.weight_decay());
  to.number("maximize", options.maximize());
  to.number("master_weights", options.master_weights());
  to.number("max_norm", options.max_norm());
  to.number("skip_nonfinite", options.skip_nonfinite());
}

template <class Options>
void read_common(Options& options, const Reading& from) {
  options.lr(from.number("lr")).weight_decay(from.number("weight_decay"));
  options.maximize(from.number("maximize") != 0);
  options.master_weights(from.number("master_weights") != 0);
  options.max_norm(from.number("max_norm"));
  options.skip_nonfinite(from.number("skip_nonfinite") != 0);
}

template <class Options>
void write_formats(const Options& options, const Writing& to) {
  write_common(options, to);
  to.number("states", static_cast<double>(options.states()));
}

template <class Options>
void read_formats(Options& options, const Reading& from) {
  read_common(options, from);
  options.states(static_cast<States>(static_cast<int64_t>(from.number("states"))));
}

}  // namespace

void AdamOptions::serialize(torch::serialize::OutputArchive& archive) const {
  const Writing to{archive};
  write_formats(*this, to);
  to.number("beta1", std::get<0>(betas()));
  to.number("beta2", std::get<1>(betas()));
  to.number("eps", eps());
  to.number("decoupled", decoupled());
}
void AdamOptions::serialize(torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  read_formats(*this, from);
  betas({from.number("beta1"), from.number("beta2")});
  eps(from.number("eps")).decoupled(from.number("decoupled") != 0);
}

void SGDOptions::serialize(torch::serialize::OutputArchive& archive) const {
  const Writing to{archive};
  write_formats(*this, to);
  to.number("momentum", momentum());
  to.number("dampening", dampening());
  to.number("nesterov", nesterov());
}
void SGDOptions::serialize(torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  read_formats(*this, from);
  momentum(from.number("momentum")).dampening(from.number("dampening"));
  nesterov(from.number("nesterov") != 0);
}

void AdagradOptions::serialize(torch::serialize::OutputArchive& archive) const {
  const Writing to{archive};
  write_formats(*this, to);
  to.number("lr_decay", lr_decay());
  to.number("initial_accumulator_value", initial_accumulator_value());
  to.number("eps", eps());
}
void AdagradOptions::serialize(torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  read_formats(*this, from);
  lr_decay(from.number("lr_decay")).eps(from.number("eps"));
  initial_accumulator_value(from.number("initial_accumulator_value"));
}

void LionOptions::serialize(torch::serialize::OutputArchive& archive) const {
  const Writing to{archive};
  write_formats(*this, to);
  to.number("beta1", std::get<0>(betas()));
  to.number("beta2", std::get<1>(betas()));
}
void LionOptions::serialize(torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  read_formats(*this, from);
  betas({from.number("beta1"), from.number("beta2")});
}

void AdafactorOptions::serialize(torch::serialize::OutputArchive& archive) const {
  const Writing to{archive};
  write_common(*this, to);
  to.number("beta2_decay", beta2_decay());
  to.number("eps1", eps1().value_or(kNone));
  to.number("eps2", eps2());
  to.number("d", d());
}
void AdafactorOptions::serialize(torch::serialize::InputArchive& archive) {
  const Reading from{archive};
  read_common(*this, from);
  const double least = from.number("eps1");
  beta2_decay(from.number("beta2_decay")).eps2(from.number("eps2")).d(from.number("d"));
  eps1(least == kNone ? std::nullopt : std::optional(least));
}

}  // namespace bottomless::optim
