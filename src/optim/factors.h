// The hyperparameters of a step as the float32 factors that each element meets; the same for the vector code and for the
// reference.
// Thread-safety: pure functions. They stop the process where a rule's arrays are missing.
#pragma once
#include <cstddef>

#include "optim/adafactor.h"
#include "optim/optimizers.h"

namespace bottomless::optim {

struct AdamFactors {
  float gradient;  // with the sign of `maximize`
  bool coupled;    // whether `decay` times the parameter is added to the gradient
  float decay;
  float kept;         // of the parameter, after decoupled decay
  float beta1, new1;  // m = beta1 * m + new1 * gradient
  float beta2, new2;
  float root_factor;  // 1 / sqrt(bias correction of v)
  float epsilon;
  float negative_rate;  // with the bias correction of m
};

struct SgdFactors {
  float gradient;
  bool coupled;
  float decay;
  bool has_momentum, nesterov;
  float momentum, added;  // buffer = momentum * buffer + added * gradient
  float negative_rate;
};

struct AdagradFactors {
  float gradient;
  bool coupled;
  float decay;
  float epsilon;
  float negative_rate;
};

struct LionFactors {
  float gradient;
  float kept;
  float beta1, new1;  // of the update
  float beta2, new2;  // of m
  float rate;
};

AdamFactors fold(const AdamRule& rule, const Arrays& arrays);
SgdFactors fold(const SgdRule& rule, const Arrays& arrays);
AdagradFactors fold(const AdagradRule& rule, const Arrays& arrays);
LionFactors fold(const LionRule& rule, const Arrays& arrays);

struct AdafactorFactors {
  float gradient;
  float kept;
  double averaged;  // how much of a mean square goes into its moving average
  float limit;      // of one over the root of a variance; finite
};
AdafactorFactors fold(const AdafactorRule& rule);
float moving_average(float before, double mean_square, const AdafactorFactors& factors);
// Of a matrix whose rows have this mean variance.
float row_factor(float row_variance, double mean, const AdafactorRule& rule);
float inverse_root(float variance);  // at most the largest finite number
// What an update is multiplied with, from the sums of squares of all `count` parameters and updates.
float negative_rate(const AdafactorRule& rule, double parameters, double updates, size_t count);

}  // namespace bottomless::optim
