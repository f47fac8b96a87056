// Which states the optimizers of <bottomless/optim.h> keep for a parameter, and how those of 8 bits are made.
// Thread-safety: free functions without state.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <bottomless/optim.h>

#include <string>
#include <tuple>
#include <vector>

namespace bottomless::optim {

inline const std::string kScales = "_scales";  // of codes, beside their name

struct StateName {
  std::string name;
  bool has_sign;
};

inline std::vector<StateName> states_of(const AdamOptions&) {
  return {{"exp_avg", true}, {"exp_avg_sq", false}};
}
inline std::vector<StateName> states_of(const SGDOptions& options) {
  if (options.momentum() == 0) return {};
  return {{"momentum_buffer", true}};
}
inline std::vector<StateName> states_of(const AdagradOptions&) { return {{"sum", false}}; }
inline std::vector<StateName> states_of(const LionOptions&) { return {{"exp_avg", true}}; }

template <class Signature>
auto operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Codes for a tensor of this shape and their scales, of which every element stands for `value`.
inline std::tuple<at::Tensor, at::Tensor> new_codes(const at::Tensor& like, bool has_sign,
                                                    double value) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, bool, double);
  return operator_of<Signature>("bottomless::new_codes").call(like, has_sign, value);
}

}  // namespace bottomless::optim
