#include <algorithm>
#include <array>
#include <vector>

#include "optim/factors.h"
#include "optim/reference.h"

namespace bottomless::optim::reference {
namespace {

// The sum of a tile, or of its part of a row.
class LaneSums {
 public:
  void add(size_t column, double value) { lanes_[column % 16] += value * value; }
  double sum() const {
    std::array<double, 16> left = lanes_;
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) left[i] += left[i + half];
    }
    return left[0];
  }

 private:
  std::array<double, 16> lanes_{};
};

struct Range {
  size_t begin, end;  // of rows or columns
};

std::vector<Range> cut(size_t count, size_t length) {
  std::vector<Range> all;
  for (size_t begin = 0; begin < count; begin += length)
    all.push_back({begin, std::min(begin + length, count)});
  return all;
}

class Matrices {
 public:
  Matrices(const AdafactorRule& rule, const AdafactorArrays& arrays)
      : rule_(rule), arrays_(arrays), factors_(fold(rule)) {}

  void average_squares() {
    for (size_t matrix = 0; matrix < arrays_.matrices; ++matrix) {
      std::vector<double> rows(arrays_.rows), columns(arrays_.columns);
      for (const Range across : cut(arrays_.columns, kTileColumns)) {
        for (size_t row = 0; row < arrays_.rows; ++row) {
          LaneSums sums;
          for (size_t column = across.begin; column < across.end; ++column)
            sums.add(column, gradient(matrix, row, column));
          rows[row] += sums.sum();
        }
      }
      for (const Range down : cut(arrays_.rows, kTileRows)) {
        for (size_t column = 0; column < arrays_.columns; ++column) {
          double sum = 0;
          for (size_t row = down.begin; row < down.end; ++row) {
            const double value = gradient(matrix, row, column);
            sum += value * value;
          }
          columns[column] += sum;
        }
      }
      average(columns, arrays_.rows, arrays_.column_variances + matrix * arrays_.columns);
      if (arrays_.row_variances != nullptr)
        average(rows, arrays_.columns, arrays_.row_variances + matrix * arrays_.rows);
    }
  }

  // Of what `value(matrix, row, column)` is.
  template <class Value>
  double sum_of_squares(Value value) const {
    std::vector<double> tiles;
    for (size_t matrix = 0; matrix < arrays_.matrices; ++matrix) {
      for (const Range down : cut(arrays_.rows, kTileRows)) {
        for (const Range across : cut(arrays_.columns, kTileColumns)) {
          LaneSums sums;
          for (size_t row = down.begin; row < down.end; ++row)
            for (size_t column = across.begin; column < across.end; ++column)
              sums.add(column, value(matrix, row, column));
          tiles.push_back(sums.sum());
        }
      }
    }
    double all = 0;
    for (const Range group : cut(tiles.size(), tiles_at_once(arrays_.rows, arrays_.columns))) {
      double sum = 0;
      for (size_t i = group.begin; i < group.end; ++i) sum += tiles[i];
      all += sum;
    }
    return all;
  }

  float parameter(size_t matrix, size_t row, size_t column) const {
    const size_t i = index(matrix, row, column);
    return arrays_.master != nullptr ? arrays_.master[i]
                                     : load_element(arrays_.parameter_type, arrays_.parameter, i);
  }

  float update(size_t matrix, size_t row, size_t column) const {
    float factor = inverse_root(arrays_.column_variances[matrix * arrays_.columns + column]);
    if (arrays_.row_variances != nullptr) factor = row_factor_of(matrix, row) * factor;
    return gradient(matrix, row, column) * (factor > factors_.limit ? factors_.limit : factor);
  }

  void apply(float negative_rate) {
    for (size_t matrix = 0; matrix < arrays_.matrices; ++matrix)
      for (size_t row = 0; row < arrays_.rows; ++row)
        for (size_t column = 0; column < arrays_.columns; ++column) {
          const float value = parameter(matrix, row, column) * factors_.kept +
                              negative_rate * update(matrix, row, column);
          const size_t i = index(matrix, row, column);
          if (arrays_.master != nullptr) arrays_.master[i] = value;
          store_element(arrays_.parameter_type, arrays_.parameter, i, value);
        }
  }

  void find_means() {
    for (size_t matrix = 0; matrix < arrays_.matrices; ++matrix) {
      double sum = 0;
      for (size_t row = 0; row < arrays_.rows && arrays_.row_variances != nullptr; ++row)
        sum += arrays_.row_variances[matrix * arrays_.rows + row];
      means_.push_back(sum / static_cast<double>(arrays_.rows));
    }
  }

 private:
  size_t index(size_t matrix, size_t row, size_t column) const {
    return (matrix * arrays_.rows + row) * arrays_.columns + column;
  }
  float gradient(size_t matrix, size_t row, size_t column) const {
    const size_t i = index(matrix, row, column);
    return load_element(arrays_.gradient_type, arrays_.gradient, i) * factors_.gradient;
  }
  float row_factor_of(size_t matrix, size_t row) const {
    return row_factor(arrays_.row_variances[matrix * arrays_.rows + row], means_[matrix], rule_);
  }
  void average(const std::vector<double>& sums, size_t summands, float* variances) const {
    for (size_t i = 0; i < sums.size(); ++i)
      variances[i] =
          moving_average(variances[i], sums[i] / static_cast<double>(summands), factors_);
  }

  const AdafactorRule& rule_;
  const AdafactorArrays& arrays_;
  const AdafactorFactors factors_;
  std::vector<double> means_;  // of the variances of rows, for each matrix
};

}  // namespace

void update(const AdafactorRule& rule, const AdafactorArrays& arrays) {
  const size_t count = arrays.matrices * arrays.rows * arrays.columns;
  if (count == 0) return;
  Matrices matrices(rule, arrays);
  const double parameters = matrices.sum_of_squares([&](size_t matrix, size_t row, size_t column) {
    return matrices.parameter(matrix, row, column);
  });
  matrices.average_squares();
  matrices.find_means();
  const double updates = matrices.sum_of_squares([&](size_t matrix, size_t row, size_t column) {
    return matrices.update(matrix, row, column);
  });
  matrices.apply(negative_rate(rule, parameters, updates, count));
}

}  // namespace bottomless::optim::reference
