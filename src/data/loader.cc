#include "data/loader.h"

#include <string>

#include "base/check.h"

namespace bottomless::data {

Loader::Loader(const Rows& rows, Position from, RankShare share)
    : rows_(&rows),
      share_(share),
      position_(from),
      order_(rows.size(), mix(from.seed, from.epoch)) {}

Result<Loader> Loader::start(const Rows& rows, Position from, RankShare share) {
  BOTTOMLESS_CHECK(share.rank < share.ranks, "a rank that there is not");
  if (rows.size() == 0) {
    return Error{Code::invalid_argument, "make rows of " + std::to_string(rows.length()) +
                                             " tokens: the data gives none (" +
                                             text_of(rows.summary(), rows.length()) +
                                             "); give more data or longer rows"};
  }
  if (from.row >= rows.size()) {
    return Error{Code::invalid_argument,
                 "go on with row " + std::to_string(from.row) + " of the data: there are " +
                     std::to_string(rows.size()) +
                     "; resume with the data and the length that the run began with"};
  }
  return Loader(rows, from, share);
}

void Loader::advance() {
  if (++position_.row < rows_->size()) return;
  position_.row = 0;
  ++position_.epoch;
  order_ = Permutation(rows_->size(), mix(position_.seed, position_.epoch));
}

Batch Loader::next(uint64_t rows) {
  Batch batch;
  for (uint64_t i = 0; i < rows * share_.ranks; ++i, advance()) {
    if (i % share_.ranks == share_.rank) rows_->read(order_(position_.row), batch);
  }
  return batch;
}

double Loader::epochs() const {
  return static_cast<double>(position_.epoch) +
         static_cast<double>(position_.row) / static_cast<double>(rows_->size());
}

}  // namespace bottomless::data
