// The processes that train one model together, as torchrun or mpirun started them; one alone where nobody did. What is said
// here is small: parameters, gradients and shares go their own ways (bottomless/shard.h).
// Thread-safety: one thread at a time; all ranks call the members that need all of them in the same order.
// Errors: a rank that has ended, or gives no sign until the deadline, is thrown as c10::Error by whoever waits for it.
#pragma once
#include <bottomless/result.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "data/loader.h"

namespace bottomless::train {

class Ranks {
 public:
  Ranks();  // alone
  // Throws as join_ranks().
  static Result<Ranks> join(std::chrono::seconds deadline);
  Ranks(Ranks&& other) noexcept;
  Ranks& operator=(Ranks&& other) noexcept;
  // Waits until the others have heard what was said last, unless an exception is on its way.
  ~Ranks();

  int rank() const { return rank_; }
  int count() const { return count_; }
  bool is_first() const { return rank_ == 0; }
  data::RankShare share() const {
    return {static_cast<uint64_t>(rank_), static_cast<uint64_t>(count_)};
  }

  // What it takes to speak with the others counts against the limit in force from now on.
  Result<void> charge_to_limit();

  // What this rank is at, for those who wait for it, and that it goes on: they wait longer than the deadline then.
  void set_phase(const std::string& what);
  void heartbeat();

  // Over all ranks, element by element, in the order of ranks.
  std::vector<double> sum(const std::vector<double>& values);
  bool any(bool here);
  // What each has said, by rank.
  std::vector<std::string> all_gather(const std::string& text);
  // Done where all are done. The first rank's error is everybody's.
  Result<void> agree(const Result<void>& here);

  std::chrono::seconds deadline() const { return deadline_; }
  // Another connection, for a Shard.
  c10::intrusive_ptr<c10d::Backend> connect() const;

 private:
  struct Connection;
  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own);

  int rank_ = 0;
  int count_ = 1;
  std::chrono::seconds deadline_{0};
  std::unique_ptr<Connection> connection_;  // null: alone
};

}  // namespace bottomless::train
