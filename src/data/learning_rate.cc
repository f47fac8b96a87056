#include "data/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace bottomless::data {

double rate_at(const LearningRate& schedule, uint64_t step) {
  if (step < schedule.warm_up_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
           static_cast<double>(schedule.warm_up_steps + 1);
  }
  if (schedule.decay == Decay::constant) return schedule.peak;
  // From the peak at the first step behind the warm-up to the final rate at the last of the run.
  const uint64_t last = std::max(schedule.steps, schedule.warm_up_steps + 2) - 1;
  const double done = static_cast<double>(std::min(step, last) - schedule.warm_up_steps) /
                      static_cast<double>(last - schedule.warm_up_steps);
  const double left =
      schedule.decay == Decay::linear ? 1 - done : (1 + std::cos(std::numbers::pi * done)) / 2;
  return schedule.peak * (schedule.final_ratio + (1 - schedule.final_ratio) * left);
}

Result<Decay> parse_decay(std::string_view name) {
  if (name == "constant") return Decay::constant;
  if (name == "linear") return Decay::linear;
  if (name == "cosine") return Decay::cosine;
  return Error{Code::invalid_argument, "choose a schedule for the learning rate: '" +
                                           std::string(name) +
                                           "' is none; take constant, linear or cosine"};
}

}  // namespace bottomless::data
