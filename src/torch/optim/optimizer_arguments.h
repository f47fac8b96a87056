// Arguments that the operators of all optimizers have, as the kernels want them.
// Thread-safety: all of it from any thread. They throw c10::Error.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "optim/formats.h"

namespace bottomless {

using OptionalTensor = std::optional<at::Tensor>;

// Before any kernel runs: takes the SIMD target that BOTTOMLESS_SIMD names, once.
void use_wanted_simd();

optim::Element element_of(const at::Tensor& tensor, const char* what);

// Throws unless it lies on the CPU, dense, with the sizes and strides of its parameter.
void check_alike(const at::Tensor& tensor, const at::Tensor& parameter, const char* what);

bool is_left_out(const OptionalTensor& found_inf);

// What each gradient is multiplied with: the clip factor, and one over the scale of the loss.
float factor_of(double factor, const OptionalTensor& grad_scale);

uint64_t number_of(const at::Tensor& step);

}  // namespace bottomless
