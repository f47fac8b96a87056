// Adafactor as an operator of torch. Its sums are over whole tensors, so it is never cut: parameter, master weights and
// gradient must fit into the limit together.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <limits>

#include "optim/adafactor.h"
#include "torch/optim/optimizer_arguments.h"

namespace bottomless {
namespace {

void check_contiguous(const at::Tensor& tensor, const at::Tensor& parameter, const char* what) {
  TORCH_CHECK(
      tensor.sizes() == parameter.sizes() && tensor.is_contiguous() && tensor.device().is_cpu(),
      "bottomless: Adafactor: ", what,
      " must lie on the CPU, contiguous, with the sizes of its parameter");
}

float* variances_of(const OptionalTensor& state, const char* name, size_t count) {
  TORCH_CHECK(state.has_value() && state->scalar_type() == at::kFloat && state->is_contiguous() &&
                  state->device().is_cpu() && static_cast<size_t>(state->numel()) == count,
              "bottomless: Adafactor: ", name, " must be contiguous float32 of ", count,
              " elements on the CPU");
  return state->mutable_data_ptr<float>();
}

// What torch takes for an eps1 of None: that of what is updated.
double epsilon_of(optim::Element element) {
  switch (element) {
    case optim::Element::bfloat16:
      return 0x1p-7;
    case optim::Element::float16:
      return 0x1p-10;
    case optim::Element::float32:
      break;
  }
  return std::numeric_limits<float>::epsilon();
}

optim::AdafactorArrays arrays_of(const at::Tensor& parameter, const at::Tensor& gradient,
                                 const OptionalTensor& master) {
  use_wanted_simd();
  check_contiguous(parameter, parameter, "a parameter");
  check_contiguous(gradient, parameter, "a gradient");
  optim::AdafactorArrays arrays{.parameter = parameter.mutable_data_ptr(),
                                .parameter_type = element_of(parameter, "a parameter"),
                                .gradient = gradient.const_data_ptr(),
                                .gradient_type = element_of(gradient, "a gradient")};
  if (master.has_value()) {
    check_contiguous(*master, parameter, "master weights");
    arrays.master = master->mutable_data_ptr<float>();
  }
  return arrays;
}

void run_all(size_t count, const std::function<void(size_t)>& function) {
  at::parallel_for(0, static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) function(static_cast<size_t>(i));
  });
}

at::Tensor& adafactor(at::Tensor& self, const at::Tensor& grad, const OptionalTensor& master,
                      const OptionalTensor& row_var, const OptionalTensor& col_var,
                      const OptionalTensor& variance, const at::Tensor& step, double lr,
                      double beta2_decay, std::optional<double> eps1, double eps2, double d,
                      double weight_decay, bool maximize, double grad_factor,
                      const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
  optim::AdafactorArrays arrays = arrays_of(self, grad, master);
  const auto count = static_cast<size_t>(self.numel());
  if (count == 0 || is_left_out(found_inf)) return self;
  if (self.dim() > 1) {
    arrays.rows = static_cast<size_t>(self.size(-2));
    arrays.columns = static_cast<size_t>(self.size(-1));
    arrays.matrices = count / arrays.rows / arrays.columns;
    arrays.row_variances = variances_of(row_var, "row_var", arrays.matrices * arrays.rows);
    arrays.column_variances = variances_of(col_var, "col_var", arrays.matrices * arrays.columns);
  } else {
    arrays.columns = count;
    arrays.column_variances = variances_of(variance, "variance", count);
  }
  const auto updated = master.has_value() ? optim::Element::float32 : arrays.parameter_type;
  optim::update(optim::AdafactorRule{.rate = lr,
                                     .beta2_decay = beta2_decay,
                                     .epsilon1 = eps1.value_or(epsilon_of(updated)),
                                     .epsilon2 = eps2,
                                     .clip = d,
                                     .weight_decay = weight_decay,
                                     .maximize = maximize,
                                     .gradient_factor = factor_of(grad_factor, grad_scale),
                                     .step = number_of(step)},
                arrays, run_all);
  return self;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(bottomless, library) {
  library.def(
      "adafactor_(Tensor(a!) self, Tensor grad, Tensor(b!)? master, Tensor(c!)? row_var, "
      "Tensor(d!)? col_var, Tensor(e!)? variance, Tensor step, *, float lr, float beta2_decay, "
      "float? eps1, float eps2, float d, float weight_decay, bool maximize, "
      "float grad_factor=1.0, Tensor? grad_scale=None, Tensor? found_inf=None) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(bottomless, CPU, library) { library.impl("adafactor_", &adafactor); }

}  // namespace bottomless
