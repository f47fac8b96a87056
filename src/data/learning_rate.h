// The learning rate of each step. It stands with the data because both are functions of the step number alone, from which a
// run continues: nothing of it is kept in a checkpoint.
// Thread-safety: a free function without state.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <string_view>

namespace bottomless::data {

enum class Decay { constant, linear, cosine };

struct LearningRate {
  double peak = 1e-4;
  uint64_t warm_up_steps = 0;  // in these it rises evenly; the first step has a share of it, not 0
  uint64_t steps = 0;          // of the whole run; where it decays, the last one has the final rate
  Decay decay = Decay::cosine;
  double final_ratio = 0.1;  // of the peak
};

// Steps are counted from 0. Beyond the last it stays what it was.
double rate_at(const LearningRate& schedule, uint64_t step);

// "constant", "linear", "cosine".
Result<Decay> parse_decay(std::string_view name);

}  // namespace bottomless::data
