// The arrays of an update in memory of their own, for every combination of formats.
// Thread-safety: none.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "optim/optimizers.h"
#include "support/guarded_allocator.h"
#include "support/random.h"

namespace bottomless::optim {

struct StateKind {
  StateFormat format = StateFormat::float32;
  Rounding rounding = Rounding::nearest;
};

struct ArrayFormats {
  Element parameter = Element::float32;
  bool has_master = false;
  Element gradient = Element::float32;
  StateKind first, second;
};
std::string describe(const ArrayFormats& formats);

inline const std::vector<Element> kElements{Element::float32, Element::bfloat16, Element::float16};
inline const std::vector<StateKind> kStateKinds{{StateFormat::float32},
                                                {StateFormat::bfloat16},
                                                {StateFormat::bfloat16, Rounding::stochastic},
                                                {StateFormat::quantised8}};

using GuardedBytes = std::vector<std::byte, GuardedAllocator<std::byte>>;
using GuardedFloats = std::vector<float, GuardedAllocator<float>>;

// Copies are deep. Room for more elements than an update is given shows whether it writes outside of its range.
class ArraySet {
 public:
  // Of all magnitudes, with zeros and denormals among them.
  ArraySet(const ArrayFormats& formats, size_t capacity, Random& random);
  // Parameters as given, everything else 0.
  ArraySet(const ArrayFormats& formats, const std::vector<float>& parameters);

  // `offset` elements of each array are left out.
  Arrays arrays(size_t offset, size_t count);

  float parameter(size_t i) const;
  void set_gradient(size_t i, float value);

  // Empty if all bits are the same, except that any NaN is like any other; else the first difference.
  std::string difference(const ArraySet& other) const;

 private:
  ArrayFormats formats_;
  size_t capacity_;
  GuardedBytes parameter_, master_, gradient_, first_, second_;
  GuardedFloats first_scales_, second_scales_;
};

}  // namespace bottomless::optim
