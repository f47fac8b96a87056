// The processes that train one model together, as torchrun or mpirun started them; one alone where nobody did. What is said
// here is small: parameters, gradients and shares go their own ways (bottomless/shard.h).
// Thread-safety: one thread at a time; all ranks call the same members in the same order.
// Errors: a rank that has ended is thrown as c10::Error by whoever waits for it.
#pragma once
#include <bottomless/result.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "data/loader.h"

namespace bottomless::train {

class Ranks {
 public:
  // Throws as join_ranks().
  static Result<Ranks> join();

  int rank() const { return rank_; }
  int count() const { return count_; }
  bool is_first() const { return rank_ == 0; }
  data::RankShare share() const {
    return {static_cast<uint64_t>(rank_), static_cast<uint64_t>(count_)};
  }

  // Over all ranks, element by element, in the order of ranks.
  std::vector<double> sum(const std::vector<double>& values);
  bool any(bool here);
  // What each has said, by rank.
  std::vector<std::string> all_say(const std::string& text);
  // Done where all are done. The first rank's error is everybody's.
  Result<void> agree(const Result<void>& here);

  // Another connection, for a Shard.
  static c10::intrusive_ptr<c10d::Backend> connect();

 private:
  std::vector<std::byte> gather(std::span<const std::byte> own);

  int rank_ = 0;
  int count_ = 1;
  c10::intrusive_ptr<c10d::Backend> connection_;  // null: alone
};

}  // namespace bottomless::train
