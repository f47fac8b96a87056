// The passes of adafactor.h over one tile.
// Thread-safety: pure functions of their arguments.
#pragma once
#include <cstddef>

#include "optim/adafactor.h"

namespace bottomless::optim {

struct Tile {
  void* parameter;
  Element parameter_type;
  float* master;  // or null
  const void* gradient;
  Element gradient_type;
  float gradient_factor;
  size_t rows, columns, stride;  // stride: elements from a row to the next
};

struct TileSums {
  double rows[kTileRows], columns[kTileColumns];  // of squares of gradients
  double parameter;                               // of squares
};
void measure(const Tile& tile, TileSums& sums);

// The update of an element is its gradient times the product of its row's and its column's factor, or times `limit` if that
// is less.
struct TileFactors {
  float rows[kTileRows];
  float columns[kTileColumns];  // 0 between the tile's last one and the next multiple of 16
  float limit;
};
// One over the root of each variance, or the largest finite number: a column factor, with the zeros that it needs.
void invert_roots(const float* variances, size_t count, float* factors);

double squares_of_updates(const Tile& tile, const TileFactors& factors);

// parameter = kept * parameter + negative_rate * update
struct TileUpdate {
  float kept, negative_rate;
};
void apply(const Tile& tile, const TileFactors& factors, TileUpdate update);

}  // namespace bottomless::optim
