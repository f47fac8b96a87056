// The kernels of src/optim as operators of torch. Like any operator they are intercepted, cut into tiles and put off;
// what they read and write are ordinary tensors, which move as the schedule says.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>

#include "optim/optimizers.h"
#include "optim/quantised.h"
#include "torch/optim/optimizer_arguments.h"

namespace bottomless {
namespace {

using optim::kBlock;

constexpr int64_t kBlocksAtOnce = 64;  // for a thread: enough that dividing the work costs nothing

optim::State state_of(const at::Tensor& values, const OptionalTensor& scales,
                      const at::Tensor& parameter, optim::Moment moment, bool stochastic) {
  check_alike(values, parameter, "an optimizer's state");
  optim::State state{.values = values.mutable_data_ptr()};
  if (scales.has_value()) {
    const auto codes = moment == optim::Moment::first ? at::kChar : at::kByte;
    const auto blocks =
        static_cast<int64_t>(optim::block_count(static_cast<size_t>(values.numel())));
    TORCH_CHECK(
        values.scalar_type() == codes && scales->scalar_type() == at::kFloat &&
            scales->is_contiguous() && scales->numel() == blocks,
        "bottomless: a state of 8 bits needs codes, and a float32 scale for each 256 of them");
    state.format = optim::StateFormat::quantised8;
    state.scales = scales->mutable_data_ptr<float>();
  } else if (values.scalar_type() == at::kBFloat16) {
    state.format = optim::StateFormat::bfloat16;
    state.rounding = stochastic ? optim::Rounding::stochastic : optim::Rounding::nearest;
  } else {
    TORCH_CHECK_TYPE(values.scalar_type() == at::kFloat,
                     "bottomless: an optimizer's state is float32, bfloat16 or 8 bits with scales");
  }
  return state;
}

optim::Arrays arrays_of(const at::Tensor& parameter, const at::Tensor& gradient,
                        const OptionalTensor& master) {
  use_wanted_simd();
  check_alike(parameter, parameter, "a parameter");
  check_alike(gradient, parameter, "a gradient");
  optim::Arrays arrays{.parameter = parameter.mutable_data_ptr(),
                       .parameter_type = element_of(parameter, "a parameter"),
                       .gradient = gradient.const_data_ptr(),
                       .gradient_type = element_of(gradient, "a gradient"),
                       .count = static_cast<size_t>(parameter.numel())};
  if (master.has_value()) {
    check_alike(*master, parameter, "master weights");
    arrays.master = master->mutable_data_ptr<float>();
  }
  return arrays;
}

void* advance(void* from, size_t bytes) {
  return from == nullptr ? nullptr : static_cast<std::byte*>(from) + bytes;
}

optim::State part_of(optim::State state, size_t from) {
  state.values = advance(state.values, from * optim::bytes_of(state.format));
  if (state.scales != nullptr) state.scales += from / kBlock;
  return state;
}

optim::Arrays part_of(const optim::Arrays& whole, size_t from, size_t to) {
  optim::Arrays part = whole;
  part.parameter = advance(whole.parameter, from * optim::bytes_of(whole.parameter_type));
  if (whole.master != nullptr) part.master = whole.master + from;
  part.gradient =
      static_cast<const std::byte*>(whole.gradient) + from * optim::bytes_of(whole.gradient_type);
  part.first = part_of(whole.first, from);
  part.second = part_of(whole.second, from);
  part.count = to - from;
  return part;
}

template <class Rule>
void run(const Rule& rule, const optim::Arrays& arrays) {
  const auto blocks = static_cast<int64_t>(optim::block_count(arrays.count));
  std::atomic<bool> finite = true;
  at::parallel_for(0, blocks, kBlocksAtOnce, [&](int64_t begin, int64_t end) {
    const size_t from = static_cast<size_t>(begin) * kBlock;
    const size_t to = std::min(static_cast<size_t>(end) * kBlock, arrays.count);
    if (!update(rule, part_of(arrays, from, to)).finite) finite = false;
  });
  if (!finite) {
    TORCH_WARN_ONCE(
        "bottomless: a gradient that is not finite went into an update; skip_nonfinite leaves such "
        "steps out, "
        "and says of which parameter the gradient is");
  }
}

at::Tensor& adam(at::Tensor& self, const at::Tensor& grad, const OptionalTensor& master,
                 const at::Tensor& exp_avg, const OptionalTensor& exp_avg_scales,
                 const at::Tensor& exp_avg_sq, const OptionalTensor& exp_avg_sq_scales,
                 const at::Tensor& step, double lr, double beta1, double beta2, double eps,
                 double weight_decay, bool decoupled, bool maximize, bool stochastic,
                 double grad_factor, const OptionalTensor& grad_scale,
                 const OptionalTensor& found_inf) {
  optim::Arrays arrays = arrays_of(self, grad, master);
  arrays.first = state_of(exp_avg, exp_avg_scales, self, optim::Moment::first, stochastic);
  arrays.second = state_of(exp_avg_sq, exp_avg_sq_scales, self, optim::Moment::second, stochastic);
  if (is_left_out(found_inf)) return self;
  run(optim::AdamRule{.rate = lr,
                      .beta1 = beta1,
                      .beta2 = beta2,
                      .epsilon = eps,
                      .weight_decay = weight_decay,
                      .decoupled = decoupled,
                      .maximize = maximize,
                      .gradient_factor = factor_of(grad_factor, grad_scale),
                      .step = number_of(step)},
      arrays);
  return self;
}

at::Tensor& sgd(at::Tensor& self, const at::Tensor& grad, const OptionalTensor& master,
                const OptionalTensor& momentum_buffer, const OptionalTensor& momentum_buffer_scales,
                const at::Tensor& step, double lr, double momentum, double dampening,
                double weight_decay, bool nesterov, bool maximize, bool stochastic,
                double grad_factor, const OptionalTensor& grad_scale,
                const OptionalTensor& found_inf) {
  optim::Arrays arrays = arrays_of(self, grad, master);
  TORCH_CHECK(momentum == 0 || momentum_buffer.has_value(), "bottomless: momentum needs a buffer");
  if (momentum_buffer.has_value()) {
    arrays.first =
        state_of(*momentum_buffer, momentum_buffer_scales, self, optim::Moment::first, stochastic);
  }
  if (is_left_out(found_inf)) return self;
  run(optim::SgdRule{.rate = lr,
                     .momentum = momentum,
                     .dampening = dampening,
                     .weight_decay = weight_decay,
                     .nesterov = nesterov,
                     .maximize = maximize,
                     .gradient_factor = factor_of(grad_factor, grad_scale),
                     .step = number_of(step)},
      arrays);
  return self;
}

at::Tensor& adagrad(at::Tensor& self, const at::Tensor& grad, const OptionalTensor& master,
                    const at::Tensor& sum, const OptionalTensor& sum_scales, const at::Tensor& step,
                    double lr, double lr_decay, double eps, double weight_decay, bool maximize,
                    bool stochastic, double grad_factor, const OptionalTensor& grad_scale,
                    const OptionalTensor& found_inf) {
  optim::Arrays arrays = arrays_of(self, grad, master);
  arrays.second = state_of(sum, sum_scales, self, optim::Moment::second, stochastic);
  if (is_left_out(found_inf)) return self;
  const uint64_t number = number_of(step);
  run(optim::AdagradRule{.rate = lr / (1 + static_cast<double>(number - 1) * lr_decay),
                         .epsilon = eps,
                         .weight_decay = weight_decay,
                         .maximize = maximize,
                         .gradient_factor = factor_of(grad_factor, grad_scale),
                         .step = number},
      arrays);
  return self;
}

at::Tensor& lion(at::Tensor& self, const at::Tensor& grad, const OptionalTensor& master,
                 const at::Tensor& exp_avg, const OptionalTensor& exp_avg_scales,
                 const at::Tensor& step, double lr, double beta1, double beta2, double weight_decay,
                 bool maximize, bool stochastic, double grad_factor,
                 const OptionalTensor& grad_scale, const OptionalTensor& found_inf) {
  optim::Arrays arrays = arrays_of(self, grad, master);
  arrays.first = state_of(exp_avg, exp_avg_scales, self, optim::Moment::first, stochastic);
  if (is_left_out(found_inf)) return self;
  run(optim::LionRule{.rate = lr,
                      .beta1 = beta1,
                      .beta2 = beta2,
                      .weight_decay = weight_decay,
                      .maximize = maximize,
                      .gradient_factor = factor_of(grad_factor, grad_scale),
                      .step = number_of(step)},
      arrays);
  return self;
}

}  // namespace

TORCH_LIBRARY(bottomless, library) {
  library.def(
      "adam_(Tensor(a!) self, Tensor grad, Tensor(b!)? master, Tensor(c!) exp_avg, "
      "Tensor(d!)? exp_avg_scales, Tensor(e!) exp_avg_sq, Tensor(f!)? exp_avg_sq_scales, "
      "Tensor step, *, float lr, float beta1, float beta2, float eps, float weight_decay, "
      "bool decoupled, bool maximize, bool stochastic, float grad_factor=1.0, "
      "Tensor? grad_scale=None, Tensor? found_inf=None) -> Tensor(a!)");
  library.def(
      "sgd_(Tensor(a!) self, Tensor grad, Tensor(b!)? master, Tensor(c!)? momentum_buffer, "
      "Tensor(d!)? momentum_buffer_scales, Tensor step, *, float lr, float momentum, "
      "float dampening, float weight_decay, bool nesterov, bool maximize, bool stochastic, "
      "float grad_factor=1.0, Tensor? grad_scale=None, Tensor? found_inf=None) -> Tensor(a!)");
  library.def(
      "adagrad_(Tensor(a!) self, Tensor grad, Tensor(b!)? master, Tensor(c!) sum, "
      "Tensor(d!)? sum_scales, Tensor step, *, float lr, float lr_decay, float eps, "
      "float weight_decay, bool maximize, bool stochastic, float grad_factor=1.0, "
      "Tensor? grad_scale=None, Tensor? found_inf=None) -> Tensor(a!)");
  library.def(
      "lion_(Tensor(a!) self, Tensor grad, Tensor(b!)? master, Tensor(c!) exp_avg, "
      "Tensor(d!)? exp_avg_scales, Tensor step, *, float lr, float beta1, float beta2, "
      "float weight_decay, bool maximize, bool stochastic, float grad_factor=1.0, "
      "Tensor? grad_scale=None, Tensor? found_inf=None) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(bottomless, CPU, library) {
  library.impl("adam_", &adam);
  library.impl("sgd_", &sgd);
  library.impl("adagrad_", &adagrad);
  library.impl("lion_", &lion);
}

}  // namespace bottomless
