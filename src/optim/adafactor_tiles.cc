#include "optim/adafactor_tiles.h"

#include <cfloat>
#include <cmath>

#include "optim/factors.h"

// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adafactor_tiles.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "optim/vector_arrays-inl.h"
#include "optim/vector_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bottomless::optim::HWY_NAMESPACE {

// A row of a tile is a chunk, padded with zeros: these add nothing to any sum.
static_assert(kTileColumns <= kChunk);
inline constexpr size_t kSums = 16;
static_assert(kPadding % kSums == 0);

using Doubles = hn::CappedTag<double, 4>;
using DoubleVector = hn::Vec<Doubles>;
using HalfFloats = hn::Rebind<float, Doubles>;
using HalfVector = hn::Vec<HalfFloats>;

inline Extent row_of(const Tile& tile, size_t row) { return {row * tile.stride, tile.columns}; }

inline double add_up(double* sums) {
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// Adds square(i), which is of the elements from i, to the sums. Four vectors of them at a time hide the latency of the
// additions; a target with shorter vectors goes through the row more than once.
template <class Square>
HWY_INLINE void add_squares(size_t count, double* HWY_RESTRICT sums, Square square) {
  const Doubles d;
  const size_t lanes = hn::Lanes(d);
  for (size_t lane = 0; lane < kSums; lane += 4 * lanes) {
    double* at = sums + lane;
    DoubleVector sum0 = hn::LoadU(d, at), sum1 = hn::LoadU(d, at + lanes);
    DoubleVector sum2 = hn::LoadU(d, at + 2 * lanes), sum3 = hn::LoadU(d, at + 3 * lanes);
    for (size_t i = lane; i < count; i += kSums) {
      sum0 = hn::Add(sum0, square(i));
      sum1 = hn::Add(sum1, square(i + lanes));
      sum2 = hn::Add(sum2, square(i + 2 * lanes));
      sum3 = hn::Add(sum3, square(i + 3 * lanes));
    }
    hn::StoreU(sum0, d, at);
    hn::StoreU(sum1, d, at + lanes);
    hn::StoreU(sum2, d, at + 2 * lanes);
    hn::StoreU(sum3, d, at + 3 * lanes);
  }
}

HWY_INLINE DoubleVector square_of(HalfVector v) {
  const DoubleVector wide = hn::PromoteTo(Doubles(), v);
  return hn::Mul(wide, wide);
}

// Returns the sum of the row.
HWY_NOINLINE double measure_gradients(const float* HWY_RESTRICT values, size_t count, float factor,
                                      double* HWY_RESTRICT columns) {
  const Doubles d;
  const HalfFloats f;
  double sums[kSums] = {};
  add_squares(count, sums, [&](size_t i) HWY_ATTR {
    const DoubleVector square = square_of(hn::Mul(hn::LoadU(f, values + i), hn::Set(f, factor)));
    hn::StoreU(hn::Add(hn::LoadU(d, columns + i), square), d, columns + i);
    return square;
  });
  return add_up(sums);
}

HWY_NOINLINE void measure_parameters(const float* HWY_RESTRICT values, size_t count,
                                     double* HWY_RESTRICT sums) {
  add_squares(count, sums,
              [&](size_t i) HWY_ATTR { return square_of(hn::LoadU(HalfFloats(), values + i)); });
}

// What is the same for all elements of a row.
struct RowFactors {
  float gradient, row, limit;
};

template <class D>
HWY_INLINE hn::Vec<D> update_of(D d, RowFactors factors, hn::Vec<D> gradient, hn::Vec<D> column) {
  const hn::Vec<D> limit = hn::Set(d, factors.limit);
  const hn::Vec<D> product = hn::Mul(hn::Set(d, factors.row), column);
  // Not Min, which targets do not agree on for NaN.
  const hn::Vec<D> factor = hn::IfThenElse(hn::Lt(limit, product), limit, product);
  return hn::Mul(hn::Mul(gradient, hn::Set(d, factors.gradient)), factor);
}

HWY_NOINLINE void add_updates(const float* HWY_RESTRICT gradient, const float* HWY_RESTRICT columns,
                              size_t count, RowFactors factors, double* HWY_RESTRICT sums) {
  const HalfFloats f;
  add_squares(count, sums, [&](size_t i) HWY_ATTR {
    return square_of(update_of(f, factors, hn::LoadU(f, gradient + i), hn::LoadU(f, columns + i)));
  });
}

HWY_NOINLINE void apply_updates(float* HWY_RESTRICT parameter, const float* HWY_RESTRICT gradient,
                                const float* HWY_RESTRICT columns, size_t count, RowFactors factors,
                                TileUpdate update) {
  const Floats f;
  const FloatVector kept = hn::Set(f, update.kept), rate = hn::Set(f, update.negative_rate);
  for (size_t i = 0; i < count; i += hn::Lanes(f)) {
    const FloatVector change =
        update_of(f, factors, hn::LoadU(f, gradient + i), hn::LoadU(f, columns + i));
    const FloatVector before = hn::LoadU(f, parameter + i);
    hn::StoreU(hn::Add(hn::Mul(before, kept), hn::Mul(rate, change)), f, parameter + i);
  }
}

// What is updated: the master, if there is one.
ConvertedArray updated_array(const Tile& tile) {
  if (tile.master != nullptr) return {tile.master, Element::float32};
  return {tile.parameter, tile.parameter_type};
}

void measure_tile(const Tile& tile, TileSums& sums) {
  ConvertedArray gradient(tile.gradient, tile.gradient_type), parameter = updated_array(tile);
  double parameter_sums[kSums] = {};
  std::memset(sums.columns, 0, row_of(tile, 0).padded() * sizeof(double));
  for (size_t row = 0; row < tile.rows; ++row) {
    const Extent extent = row_of(tile, row);
    sums.rows[row] = measure_gradients(gradient.open(extent), extent.padded(), tile.gradient_factor,
                                       sums.columns);
    measure_parameters(parameter.open(extent), extent.padded(), parameter_sums);
  }
  sums.parameter = add_up(parameter_sums);
}

void invert(const float* variances, size_t count, float* factors) {
  const Floats f;
  const FloatVector one = hn::Set(f, 1), largest = hn::Set(f, FLT_MAX);
  size_t i = 0;
  for (; i + hn::Lanes(f) <= count; i += hn::Lanes(f)) {
    const FloatVector inverse = hn::Div(one, hn::Sqrt(hn::LoadU(f, variances + i)));
    hn::StoreU(hn::IfThenElse(hn::Lt(largest, inverse), largest, inverse), f, factors + i);
  }
  for (; i < count; ++i) factors[i] = inverse_root(variances[i]);
  for (; i % kPadding != 0; ++i) factors[i] = 0;
}

double sum_updates(const Tile& tile, const TileFactors& factors) {
  ConvertedArray gradient(tile.gradient, tile.gradient_type);
  double sums[kSums] = {};
  for (size_t row = 0; row < tile.rows; ++row) {
    const Extent extent = row_of(tile, row);
    add_updates(gradient.open(extent), factors.columns, extent.padded(),
                {tile.gradient_factor, factors.rows[row], factors.limit}, sums);
  }
  return add_up(sums);
}

void apply_tile(const Tile& tile, const TileFactors& factors, const TileUpdate& update) {
  ConvertedArray gradient(tile.gradient, tile.gradient_type), updated = updated_array(tile);
  PlainArray copy(tile.parameter, tile.parameter_type);
  for (size_t row = 0; row < tile.rows; ++row) {
    const Extent extent = row_of(tile, row);
    float* values = updated.open(extent);
    apply_updates(values, gradient.open(extent), factors.columns, extent.padded(),
                  {tile.gradient_factor, factors.rows[row], factors.limit}, update);
    if (tile.master != nullptr) {
      convert_to(tile.parameter_type, values, extent.padded(), copy.open(extent));
      copy.close(extent);
    }
    updated.close(extent);
  }
}

}  // namespace bottomless::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bottomless::optim {

HWY_EXPORT(measure_tile);
HWY_EXPORT(invert);
HWY_EXPORT(sum_updates);
HWY_EXPORT(apply_tile);

void measure(const Tile& tile, TileSums& sums) { HWY_DYNAMIC_DISPATCH(measure_tile)(tile, sums); }
void invert_roots(const float* variances, size_t count, float* factors) {
  HWY_DYNAMIC_DISPATCH(invert)(variances, count, factors);
}
double squares_of_updates(const Tile& tile, const TileFactors& factors) {
  return HWY_DYNAMIC_DISPATCH(sum_updates)(tile, factors);
}
void apply(const Tile& tile, const TileFactors& factors, TileUpdate update) {
  HWY_DYNAMIC_DISPATCH(apply_tile)(tile, factors, update);
}

}  // namespace bottomless::optim
#endif
