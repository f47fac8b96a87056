#include "optim/adafactor.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "optim/adafactor_tiles.h"
#include "optim/factors.h"

namespace bottomless::optim {
namespace {

constexpr size_t kElementsAtOnce = size_t{1} << 16;

size_t parts(size_t count, size_t length) { return (count + length - 1) / length; }

void* advance(void* from, size_t bytes) { return static_cast<std::byte*>(from) + bytes; }

class Step {
 public:
  Step(const AdafactorRule& rule, const AdafactorArrays& arrays, const RunAll& run_all)
      : rule_(rule),
        arrays_(arrays),
        run_all_(run_all),
        factors_(fold(rule)),
        down_(parts(arrays.rows, kTileRows)),
        across_(parts(arrays.columns, kTileColumns)),
        at_once_(tiles_at_once(arrays.rows, arrays.columns)),
        is_vector_(arrays.row_variances == nullptr) {}

  void run() {
    // Where a matrix is one tile wide or high, the sums of its rows or columns need not wait for those of other tiles.
    if (across_ > 1 && !is_vector_) row_sums_.resize(arrays_.matrices * across_ * arrays_.rows);
    if (down_ > 1) column_sums_.resize(arrays_.matrices * down_ * arrays_.columns);
    const double parameters = sum_over_tiles([this](size_t tile) { return measure_tile(tile); });
    for (size_t matrix = 0; matrix < arrays_.matrices && across_ * down_ > 1; ++matrix)
      combine(matrix);
    const double updates = sum_over_tiles([this](size_t tile) {
      return squares_of_updates(tile_at(place_of(tile)), factors_of(place_of(tile)));
    });
    const size_t count = arrays_.matrices * arrays_.rows * arrays_.columns;
    const TileUpdate update{.kept = factors_.kept,
                            .negative_rate = negative_rate(rule_, parameters, updates, count)};
    sum_over_tiles([this, update](size_t tile) {
      apply(tile_at(place_of(tile)), factors_of(place_of(tile)), update);
      return 0.0;
    });
  }

 private:
  struct Place {
    size_t matrix, down, across;
    size_t row() const { return down * kTileRows; }
    size_t column() const { return across * kTileColumns; }
  };

  Place place_of(size_t tile) const {
    return {tile / across_ / down_, tile / across_ % down_, tile % across_};
  }
  size_t rows_at(Place at) const { return std::min(kTileRows, arrays_.rows - at.row()); }
  size_t columns_at(Place at) const {
    return std::min(kTileColumns, arrays_.columns - at.column());
  }
  float* row_variances(Place at) const {
    return arrays_.row_variances + at.matrix * arrays_.rows + at.row();
  }
  float* column_variances(Place at) const {
    return arrays_.column_variances + at.matrix * arrays_.columns + at.column();
  }

  template <class OfTile>
  double sum_over_tiles(OfTile of_tile) {
    const size_t tiles = arrays_.matrices * down_ * across_;
    std::vector<double> sums(parts(tiles, at_once_));
    run_all_(sums.size(), [&](size_t i) {
      for (size_t tile = i * at_once_; tile < std::min((i + 1) * at_once_, tiles); ++tile)
        sums[i] += of_tile(tile);
    });
    double sum = 0;
    for (const double each : sums) sum += each;
    return sum;
  }

  Tile tile_at(Place at) const {
    const size_t first = (at.matrix * arrays_.rows + at.row()) * arrays_.columns + at.column();
    return {.parameter = advance(arrays_.parameter, first * bytes_of(arrays_.parameter_type)),
            .parameter_type = arrays_.parameter_type,
            .master = arrays_.master == nullptr ? nullptr : arrays_.master + first,
            .gradient = static_cast<const std::byte*>(arrays_.gradient) +
                        first * bytes_of(arrays_.gradient_type),
            .gradient_type = arrays_.gradient_type,
            .gradient_factor = factors_.gradient,
            .rows = rows_at(at),
            .columns = columns_at(at),
            .stride = arrays_.columns};
  }

  // Returns the sum of squares of the parameter.
  double measure_tile(size_t tile) {
    const Place at = place_of(tile);
    TileSums sums;
    measure(tile_at(at), sums);
    if (across_ > 1 && !is_vector_) {
      std::copy_n(sums.rows, rows_at(at),
                  &row_sums_[(at.matrix * across_ + at.across) * arrays_.rows + at.row()]);
    } else if (!is_vector_) {
      average(sums.rows, rows_at(at), arrays_.columns, row_variances(at));
    }
    if (down_ > 1) {
      std::copy_n(sums.columns, columns_at(at),
                  &column_sums_[(at.matrix * down_ + at.down) * arrays_.columns + at.column()]);
    } else {
      average(sums.columns, columns_at(at), arrays_.rows, column_variances(at));
    }
    return sums.parameter;
  }

  void average(const double* sums, size_t count, size_t summands, float* variances) const {
    for (size_t i = 0; i < count; ++i)
      variances[i] =
          moving_average(variances[i], sums[i] / static_cast<double>(summands), factors_);
  }

  void combine(size_t matrix) {
    const Place at{.matrix = matrix, .down = 0, .across = 0};
    if (!row_sums_.empty()) {
      double* sums = &row_sums_[matrix * across_ * arrays_.rows];
      add_all_to_first(sums, arrays_.rows, across_);
      average(sums, arrays_.rows, arrays_.columns, row_variances(at));
    }
    if (!column_sums_.empty()) {
      double* sums = &column_sums_[matrix * down_ * arrays_.columns];
      add_all_to_first(sums, arrays_.columns, down_);
      average(sums, arrays_.columns, arrays_.rows, column_variances(at));
      if (!is_vector_) means_.push_back(mean_of_rows(matrix));
    }
  }

  static void add_all_to_first(double* arrays, size_t length, size_t count) {
    for (size_t i = length; i < length * count; ++i) arrays[i % length] += arrays[i];
  }

  double mean_of_rows(size_t matrix) const {
    const float* first = arrays_.row_variances + matrix * arrays_.rows;
    double sum = 0;
    for (size_t i = 0; i < arrays_.rows; ++i) sum += first[i];
    return sum / static_cast<double>(arrays_.rows);
  }

  // Made again for each tile in each pass: cheaper than to keep them for a million of small matrices.
  TileFactors factors_of(Place at) const {
    TileFactors factors;
    factors.limit = factors_.limit;
    invert_roots(column_variances(at), columns_at(at), factors.columns);
    if (is_vector_) {
      std::fill_n(factors.rows, rows_at(at), 1.0f);
      return factors;
    }
    const double mean = means_.empty() ? mean_of_rows(at.matrix) : means_[at.matrix];
    for (size_t i = 0; i < rows_at(at); ++i)
      factors.rows[i] = row_factor(row_variances(at)[i], mean, rule_);
    return factors;
  }

  const AdafactorRule& rule_;
  const AdafactorArrays& arrays_;
  const RunAll& run_all_;
  const AdafactorFactors factors_;
  const size_t down_, across_;  // tiles of a matrix
  const size_t at_once_;
  const bool is_vector_;
  std::vector<double> row_sums_, column_sums_;  // of each tile beside or below others
  std::vector<double> means_;  // of the rows of matrices of several tiles below each other
};

}  // namespace

size_t tiles_at_once(size_t rows, size_t columns) {
  return std::max(size_t{1},
                  kElementsAtOnce / (std::min(rows, kTileRows) * std::min(columns, kTileColumns)));
}

void run_in_order(size_t count, const std::function<void(size_t)>& function) {
  for (size_t i = 0; i < count; ++i) function(i);
}

void update(const AdafactorRule& rule, const AdafactorArrays& arrays, const RunAll& run_all) {
  if (arrays.matrices == 0 || arrays.rows == 0 || arrays.columns == 0) return;
  BOTTOMLESS_CHECK(arrays.parameter != nullptr && arrays.gradient != nullptr,
                   "an update has a parameter and a gradient");
  BOTTOMLESS_CHECK(arrays.column_variances != nullptr, "Adafactor keeps variances");
  BOTTOMLESS_CHECK(arrays.row_variances != nullptr || arrays.rows * arrays.matrices == 1,
                   "only a vector has no variances of rows");
  BOTTOMLESS_CHECK(rule.step > 0, "steps count from 1");
  Step(rule, arrays, run_all).run();
}

}  // namespace bottomless::optim
