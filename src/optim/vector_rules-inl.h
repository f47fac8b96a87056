// The update of each rule for a vector of elements, as in reference.cc. Included once per SIMD target;
// see kernels.cc.
#if defined(BOTTOMLESS_OPTIM_VECTOR_RULES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef BOTTOMLESS_OPTIM_VECTOR_RULES_INL_H
#undef BOTTOMLESS_OPTIM_VECTOR_RULES_INL_H
#else
#define BOTTOMLESS_OPTIM_VECTOR_RULES_INL_H
#endif

#include <hwy/highway.h>

#include "optim/factors.h"
#include "optim/vector_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

HWY_INLINE FloatVector all(float value) { return hn::Set(Floats(), value); }

HWY_INLINE FloatVector weighted(float a, FloatVector x, float b, FloatVector y) {
  return hn::Add(hn::Mul(all(a), x), hn::Mul(all(b), y));
}

// An update in two parts, so that a kernel may do something else between them. `decayed` adds what coupled weight decay
// adds to the gradient, which has been multiplied by its factor. `moments` updates the states, and returns what the second
// part needs of them: the root of the second state, or the direction of the step. `apply` updates the parameter.

struct AdamStep {
  static constexpr bool kFirst = true, kSecond = true;
  AdamFactors f;

  HWY_INLINE FloatVector decayed(FloatVector p, FloatVector g) const {
    return f.coupled ? hn::Add(g, hn::Mul(all(f.decay), p)) : g;
  }
  HWY_INLINE FloatVector moments(FloatVector g, FloatVector& m, FloatVector& v) const {
    m = weighted(f.beta1, m, f.new1, g);
    v = hn::Add(hn::Mul(all(f.beta2), v), hn::Mul(hn::Mul(all(f.new2), g), g));
    return hn::Sqrt(v);
  }
  HWY_INLINE FloatVector apply(FloatVector p, FloatVector, FloatVector m, FloatVector root) const {
    const FloatVector divisor = hn::Add(hn::Mul(root, all(f.root_factor)), all(f.epsilon));
    return hn::Add(hn::Mul(p, all(f.kept)), hn::Div(hn::Mul(all(f.negative_rate), m), divisor));
  }
};

struct PlainSgdStep {
  static constexpr bool kFirst = false, kSecond = false;
  SgdFactors f;

  HWY_INLINE FloatVector decayed(FloatVector p, FloatVector g) const {
    return f.coupled ? hn::Add(g, hn::Mul(all(f.decay), p)) : g;
  }
  HWY_INLINE FloatVector moments(FloatVector g, FloatVector&, FloatVector&) const { return g; }
  HWY_INLINE FloatVector apply(FloatVector p, FloatVector g, FloatVector, FloatVector) const {
    return hn::Add(p, hn::Mul(all(f.negative_rate), g));
  }
};

struct MomentumSgdStep {
  static constexpr bool kFirst = true, kSecond = false;
  SgdFactors f;

  HWY_INLINE FloatVector decayed(FloatVector p, FloatVector g) const {
    return f.coupled ? hn::Add(g, hn::Mul(all(f.decay), p)) : g;
  }
  HWY_INLINE FloatVector moments(FloatVector g, FloatVector& buffer, FloatVector&) const {
    buffer = weighted(f.momentum, buffer, f.added, g);
    return f.nesterov ? hn::Add(g, hn::Mul(all(f.momentum), buffer)) : buffer;
  }
  HWY_INLINE FloatVector apply(FloatVector p, FloatVector, FloatVector,
                               FloatVector direction) const {
    return hn::Add(p, hn::Mul(all(f.negative_rate), direction));
  }
};

struct AdagradStep {
  static constexpr bool kFirst = false, kSecond = true;
  AdagradFactors f;

  HWY_INLINE FloatVector decayed(FloatVector p, FloatVector g) const {
    return f.coupled ? hn::Add(g, hn::Mul(all(f.decay), p)) : g;
  }
  HWY_INLINE FloatVector moments(FloatVector g, FloatVector&, FloatVector& sum) const {
    sum = hn::Add(sum, hn::Mul(g, g));
    return hn::Sqrt(sum);
  }
  HWY_INLINE FloatVector apply(FloatVector p, FloatVector g, FloatVector, FloatVector root) const {
    const FloatVector divisor = hn::Add(root, all(f.epsilon));
    return hn::Add(p, hn::Div(hn::Mul(all(f.negative_rate), g), divisor));
  }
};

struct LionStep {
  static constexpr bool kFirst = true, kSecond = false;
  LionFactors f;

  HWY_INLINE FloatVector decayed(FloatVector, FloatVector g) const { return g; }
  HWY_INLINE FloatVector moments(FloatVector g, FloatVector& m, FloatVector&) const {
    const FloatVector direction = weighted(f.beta1, m, f.new1, g);
    m = weighted(f.beta2, m, f.new2, g);
    return direction;
  }
  HWY_INLINE FloatVector apply(FloatVector p, FloatVector, FloatVector,
                               FloatVector direction) const {
    // Not Ne, whose answer for NaN depends on the target.
    const auto moves = hn::Gt(hn::Abs(direction), hn::Zero(Floats()));
    const FloatVector change = hn::IfThenElseZero(moves, hn::CopySign(all(f.rate), direction));
    return hn::Sub(hn::Mul(p, all(f.kept)), change);
  }
};

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
