#include "torch/optim/optimizer_arguments.h"

#include <cstdlib>

#include "optim/targets.h"
#include "torch/errors.h"

namespace bottomless {

void use_wanted_simd() {
  static const Result<optim::Target> wanted = [] {
    const char* name = std::getenv("BOTTOMLESS_SIMD");
    Result<optim::Target> found = optim::wanted_target(name);
    if (name != nullptr && found.ok()) optim::use_only(found.value());
    return found;
  }();
  if (!wanted.ok()) throw_error(wanted.error());
}

optim::Element element_of(const at::Tensor& tensor, const char* what) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return optim::Element::float32;
    case at::kBFloat16:
      return optim::Element::bfloat16;
    case at::kHalf:
      return optim::Element::float16;
    default:
      TORCH_CHECK_TYPE(false, "bottomless: ", what, " of type ", tensor.scalar_type(),
                       ": the optimizers take float32, bfloat16 and float16");
  }
}

void check_alike(const at::Tensor& tensor, const at::Tensor& parameter, const char* what) {
  TORCH_CHECK(tensor.sizes() == parameter.sizes() && tensor.strides() == parameter.strides() &&
                  tensor.is_non_overlapping_and_dense() && tensor.device().is_cpu(),
              "bottomless: ", what,
              " must lie on the CPU, dense, with the sizes and strides of its parameter");
}

bool is_left_out(const OptionalTensor& found_inf) {
  return found_inf.has_value() && *found_inf->const_data_ptr<float>() != 0;
}

float factor_of(double factor, const OptionalTensor& grad_scale) {
  if (grad_scale.has_value()) factor /= *grad_scale->const_data_ptr<float>();
  return static_cast<float>(factor);
}

uint64_t number_of(const at::Tensor& step) {
  TORCH_CHECK(step.numel() == 1 && step.scalar_type() == at::kFloat,
              "bottomless: step must be a single float32");
  return static_cast<uint64_t>(*step.const_data_ptr<float>());
}

}  // namespace bottomless
