// One step of Adafactor, by the rule of torch.optim.Adafactor, over a batch of matrices or over a vector. Three passes:
// squares of gradient and parameter; the square of the update; the update. A matrix has a mean square for each row and each
// column instead of a second moment for each element.
//
// Results have the bits of reference.h on every SIMD target and with any number of threads: no fused multiply-add, and all
// sums are of doubles in an order that depends on the shape only. A matrix is cut into tiles of kTileRows x kTileColumns,
// numbered along its rows first.
//   - Within a tile, column j of a row goes to the (j % 16)th of 16 sums, in order; these are added in pairs (0 + 8, 1 + 9,
//     ..., then the 8 results likewise, and so on). The sum of a row begins with each row, those of all parameters and of
//     all updates with each tile. The sum of a column takes its rows in order.
//   - Sums of tiles beside and below each other are added from left to right and from top to bottom. Those of all parameters
//     and of all updates are added over tiles_at_once() tiles in order, and then over these groups in order.
// As in optimizers.h, which NaN a result is is not promised.
// Thread-safety: pure functions of their arguments.
// Lifetime: nothing is kept.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

#include "optim/formats.h"

namespace bottomless::optim {

struct AdafactorRule {
  double rate = 1e-2;         // of decay, and the largest step relative to the parameter
  double beta2_decay = -0.8;  // not above 0
  double epsilon1 =
      0x1p-23;  // least root of a variance; 0 gives 0, not NaN, where all gradients were 0
  double epsilon2 = 1e-3;   // least root mean square of a parameter
  double clip = 1;          // largest root mean square of an update
  double weight_decay = 0;  // decoupled
  bool maximize = false;
  float gradient_factor = 1;
  uint64_t step = 1;  // counts from 1
};

// Row-major and contiguous. A vector is a matrix of one row without row_variances.
struct AdafactorArrays {
  void* parameter = nullptr;
  Element parameter_type = Element::float32;
  float* master = nullptr;  // what is updated, and then cast to the parameter; null: the parameter
  const void* gradient = nullptr;
  Element gradient_type = Element::float32;
  float* row_variances = nullptr;     // of all matrices; zeros before the first step
  float* column_variances = nullptr;  // of all matrices, or of the elements of a vector; likewise
  size_t matrices = 1, rows = 1, columns = 0;
};

inline constexpr size_t kTileRows = 256, kTileColumns = 1024;
size_t tiles_at_once(size_t rows, size_t columns);  // so many that a thread is worth it

// Calls a function with all numbers below `count`, in any order, on any threads.
using RunAll = std::function<void(size_t count, const std::function<void(size_t)>& function)>;
void run_in_order(size_t count, const std::function<void(size_t)>& function);

void update(const AdafactorRule& rule, const AdafactorArrays& arrays,
            const RunAll& run_all = run_in_order);

}  // namespace bottomless::optim
