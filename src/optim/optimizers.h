// One step of an optimizer over a contiguous range of elements, in one pass over memory: gradient factor, weight decay,
// update, states, cast and the check for gradients that are not finite. The rules are those of torch.optim, computed in
// float32 with hyperparameters folded in double; Lion is that of its paper.
//
// Every SIMD target gives the bits of reference.h, which is the specification: no fused multiply-add, only operations that
// IEEE 754 rounds exactly. The one exception are results that are NaN, where sign and payload are not promised. A range may
// be cut at multiples of kBlock elements, in any order and by any number of threads, without changing a bit.
// Thread-safety: pure functions of their arguments; ranges that do not overlap are independent.
// Lifetime: nothing is kept.
#pragma once
#include <cstddef>
#include <cstdint>

#include "optim/formats.h"

namespace bottomless::optim {

struct State {
  void* values = nullptr;  // zeros before the first step; quantised8: int8_t or uint8_t codes
  StateFormat format = StateFormat::float32;
  float* scales = nullptr;                // quantised8 only: block_count() of them
  Rounding rounding = Rounding::nearest;  // bfloat16 only; see there
};

// The arrays do not overlap and need the alignment of their elements only.
struct Arrays {
  void* parameter = nullptr;
  Element parameter_type = Element::float32;
  float* master =
      nullptr;  // what is updated, and then cast to the parameter; null: the parameter itself
  const void* gradient = nullptr;
  Element gradient_type = Element::float32;
  State first;   // Adam, Lion: m; SGD: the momentum buffer
  State second;  // Adam: v; Adagrad: the sum; never negative
  size_t count = 0;
};

// Of every rule: `step` counts from 1, `gradient_factor` is multiplied into each gradient first.

struct AdamRule {
  double rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // AdamW: the parameter decays by itself, not through the gradient
  bool maximize = false;
  float gradient_factor = 1;
  uint64_t step = 1;
};

struct SgdRule {
  double rate = 1e-3;
  double momentum = 0;   // 0: Arrays::first is not used
  double dampening = 0;  // does not count in step 1
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  float gradient_factor = 1;
  uint64_t step = 1;
};

struct AdagradRule {
  double rate = 1e-2;  // of this step: the caller has applied lr_decay
  double epsilon = 1e-10;
  double weight_decay = 0;
  bool maximize = false;
  float gradient_factor = 1;
  uint64_t step = 1;
};

struct LionRule {
  double rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled
  bool maximize = false;
  float gradient_factor = 1;
  uint64_t step = 1;
};

// Where it is not finite, the arrays have been updated nevertheless, as torch would: who wants to leave such a step out
// asks sum_of_squares (gradient_norm.h) first.
struct Outcome {
  bool finite = true;  // all gradients, times the factor
};

Outcome update(const AdamRule& rule, const Arrays& arrays);
Outcome update(const SgdRule& rule, const Arrays& arrays);
Outcome update(const AdagradRule& rule, const Arrays& arrays);
Outcome update(const LionRule& rule, const Arrays& arrays);

}  // namespace bottomless::optim
