// Rows in a shuffled order, epoch after epoch, for one of several ranks. All ranks walk through one order, and each takes
// every n-th row of it; so the order is the same whatever their number, and a run can be continued by another number of them.
// An epoch's last rows and the next one's first may share a batch: no row is dropped and none comes twice in an epoch.
// Thread-safety: one thread at a time.
// Lifetime: the Rows must outlive the loader.
#pragma once
#include <bottomless/result.h>

#include <cstdint>

#include "data/permutation.h"
#include "data/rows.h"

namespace bottomless::data {

// Where a run is in its data: all that has to be kept to go on with the next row.
struct Position {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  uint64_t row = 0;  // in the order of the epoch: the first that no rank has taken

  bool operator==(const Position&) const = default;
};

struct RankShare {
  uint64_t rank = 0, ranks = 1;
};

class Loader {
 public:
  // Fails where there are no rows, or fewer than the position says.
  static Result<Loader> start(const Rows& rows, Position from, RankShare share = {});

  // This rank's part, `rows` of it, of the next rows * ranks rows.
  Batch next(uint64_t rows);

  const Position& position() const { return position_; }
  // Epochs that are done, the current one as a fraction.
  double epochs() const;

 private:
  Loader(const Rows& rows, Position from, RankShare share);
  void advance();

  const Rows* rows_;
  RankShare share_;
  Position position_;
  Permutation order_;
};

}  // namespace bottomless::data
