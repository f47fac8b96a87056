// The sum of squares of a gradient, for clipping by norm and for finding gradients that are not finite before any step.
// Thread-safety: pure functions.
#pragma once
#include <cstddef>

#include "optim/formats.h"

namespace bottomless::optim {

struct SquareSum {
  double sum = 0;
  bool finite = true;  // all elements; the sum of finite ones never overflows
};

// Element i is squared exactly and added to the (i % 16)th of 16 sums, in order; these are added in pairs (0 + 8, 1 + 9,
// ...), then the 8 results likewise, and so on. The order is fixed, so the bits are the same on every SIMD target. Sums of
// several ranges are the caller's to add, in an order of its own.
SquareSum sum_of_squares(const void* gradient, Element type, size_t count);

}  // namespace bottomless::optim
