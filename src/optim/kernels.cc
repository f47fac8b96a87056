// Compiled once per SIMD target. Arrays are updated in chunks that fit into the first-level cache. The usual combinations of
// formats have loops of their own. In all others, parameters and gradients become float32 in buffers first, and states of
// two formats are told apart in the loop, so that the number of loops stays small.
#include "optim/optimizers.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/vector_arrays-inl.h"
#include "optim/vector_chunks-inl.h"
#include "optim/vector_rules-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

// The parameter and the gradient in formats that the kernel reads and writes by itself.
template <Element kParameterType, bool kHasCopy, Element kGradientType>
class DirectElements {
 public:
  static constexpr Element kParameter = kParameterType, kGradient = kGradientType;
  // Whether the parameter is a master, and is cast to bfloat16 as well.
  static constexpr bool kCopies = kHasCopy;

  explicit DirectElements(const Arrays& arrays)
      : parameter_(kCopies ? arrays.master : arrays.parameter, kParameter),
        copy_(arrays.parameter, Element::bfloat16),
        gradient_(arrays.gradient, kGradient) {}

  void open(Extent extent, Chunk& chunk) {
    chunk.parameter = parameter_.open(extent);
    if constexpr (kCopies) chunk.copy = copy_.open(extent);
    chunk.gradient = gradient_.open(extent);
  }
  void close(Extent extent, const Chunk&) {
    parameter_.close(extent);
    if constexpr (kCopies) copy_.close(extent);
  }

 private:
  PlainArray parameter_, copy_, gradient_;
};

// In any format; the kernel sees float32.
class ConvertedElements {
 public:
  static constexpr Element kParameter = Element::float32, kGradient = Element::float32;
  static constexpr bool kCopies = false;

  explicit ConvertedElements(const Arrays& arrays)
      : has_master_(arrays.master != nullptr),
        copy_type_(arrays.parameter_type),
        parameter_(has_master_ ? arrays.master : arrays.parameter,
                   has_master_ ? Element::float32 : arrays.parameter_type),
        copy_(arrays.parameter, copy_type_),
        gradient_(arrays.gradient, arrays.gradient_type) {}

  void open(Extent extent, Chunk& chunk) {
    chunk.parameter = parameter_.open(extent);
    chunk.gradient = gradient_.open(extent);
  }
  void close(Extent extent, const Chunk& chunk) {
    if (has_master_) {
      convert_to(copy_type_, static_cast<const float*>(chunk.parameter), chunk.count,
                 copy_.open(extent));
      copy_.close(extent);
    }
    parameter_.close(extent);
  }

 private:
  const bool has_master_;
  const Element copy_type_;
  ConvertedArray parameter_;
  PlainArray copy_;
  ConvertedArray gradient_;
};

template <class Step>
struct Task {
  Step step;
  const Arrays& arrays;
  uint64_t number;  // of the step
};

template <class Step, class Elements, StateKind kFirst, StateKind kSecond>
Outcome update_all(const Task<Step>& task) {
  constexpr Order kOrder = kOrderOf<Elements, kFirst, kSecond>;
  Elements elements(task.arrays);
  StateArray<FirstCoding, kOrder> first(Step::kFirst ? task.arrays.first : State{}, task.number);
  StateArray<SecondCoding, kOrder> second(Step::kSecond ? task.arrays.second : State{},
                                          task.number);
  Outcome outcome;
  for (size_t start = 0; start < task.arrays.count; start += kChunk) {
    const Extent extent = extent_at(start, task.arrays.count);
    Chunk chunk{.count = extent.padded()};
    elements.open(extent, chunk);
    if constexpr (Step::kFirst) chunk.first = first.open(extent);
    if constexpr (Step::kSecond) chunk.second = second.open(extent);
    if (!update_chunk<Step, Elements, kFirst, kSecond>(task.step, chunk)) outcome.finite = false;
    elements.close(extent, chunk);
    if constexpr (Step::kFirst) first.close(extent);
    if constexpr (Step::kSecond) second.close(extent);
  }
  return outcome;
}

template <class Step, StateKind kKind>
Outcome update_elements(const Task<Step>& task) {
  constexpr Element kFloat32 = Element::float32, kBfloat16 = Element::bfloat16;
  constexpr StateKind kFirst = Step::kFirst ? kKind : StateKind::none;
  constexpr StateKind kSecond = Step::kSecond ? kKind : StateKind::none;
  const Arrays& arrays = task.arrays;
  if constexpr (kKind != StateKind::any) {
    if (arrays.parameter_type == kBfloat16 && arrays.gradient_type == kBfloat16) {
      using Alone = DirectElements<kBfloat16, false, kBfloat16>;
      using WithMaster = DirectElements<kFloat32, true, kBfloat16>;
      return arrays.master == nullptr ? update_all<Step, Alone, kFirst, kSecond>(task)
                                      : update_all<Step, WithMaster, kFirst, kSecond>(task);
    }
  }
  return update_all<Step, ConvertedElements, kFirst, kSecond>(task);
}

template <class Step>
Outcome update_array(const Task<Step>& task) {
  const StateKind first = kind_of(task.arrays.first), second = kind_of(task.arrays.second);
  if constexpr (Step::kFirst && Step::kSecond) {
    if (first != second) return update_elements<Step, StateKind::any>(task);
  }
  if constexpr (Step::kFirst || Step::kSecond) {
    switch (Step::kFirst ? first : second) {
      case StateKind::bfloat16:
        return update_elements<Step, StateKind::bfloat16>(task);
      case StateKind::stochastic:
        return update_elements<Step, StateKind::stochastic>(task);
      case StateKind::quantised:
        return update_elements<Step, StateKind::quantised>(task);
      default:
        break;
    }
  }
  return update_elements<Step, StateKind::float32>(task);
}

Outcome update_adam(const AdamRule& rule, const Arrays& arrays) {
  return update_array<AdamStep>({{fold(rule, arrays)}, arrays, rule.step});
}

Outcome update_sgd(const SgdRule& rule, const Arrays& arrays) {
  const SgdFactors factors = fold(rule, arrays);
  return factors.has_momentum ? update_array<MomentumSgdStep>({{factors}, arrays, rule.step})
                              : update_array<PlainSgdStep>({{factors}, arrays, rule.step});
}

Outcome update_adagrad(const AdagradRule& rule, const Arrays& arrays) {
  return update_array<AdagradStep>({{fold(rule, arrays)}, arrays, rule.step});
}

Outcome update_lion(const LionRule& rule, const Arrays& arrays) {
  return update_array<LionStep>({{fold(rule, arrays)}, arrays, rule.step});
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bottomless::optim {

HWY_EXPORT(update_adam);
HWY_EXPORT(update_sgd);
HWY_EXPORT(update_adagrad);
HWY_EXPORT(update_lion);

Outcome update(const AdamRule& rule, const Arrays& arrays) {
  return HWY_DYNAMIC_DISPATCH(update_adam)(rule, arrays);
}
Outcome update(const SgdRule& rule, const Arrays& arrays) {
  return HWY_DYNAMIC_DISPATCH(update_sgd)(rule, arrays);
}
Outcome update(const AdagradRule& rule, const Arrays& arrays) {
  return HWY_DYNAMIC_DISPATCH(update_adagrad)(rule, arrays);
}
Outcome update(const LionRule& rule, const Arrays& arrays) {
  return HWY_DYNAMIC_DISPATCH(update_lion)(rule, arrays);
}

}  // namespace bottomless::optim
#endif
