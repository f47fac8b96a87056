// Ranks that are done, and take part in what others still do.
#include <algorithm>
#include <functional>

#include "ranks/shard_roles.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"
#include "torch/shard/shard_phase.h"
#include "torch/shard/sharding.h"

namespace bottomless {

void Sharding::part(Model model) {
  const Phase phase(*this, "parting from the others");
  for (const Parameter& parameter : parameters_) {
    if (model == Model::forgotten || parameter.gather == nullptr) continue;
    // What somebody has written to is not dropped any more.
    const Bytes all = parameter.whole.nbytes();
    for (Bytes at = 0; at < all; at += piece_bytes_) {
      Result<PinnedRange> piece = pin_range(parameter.whole, at, std::min(piece_bytes_, all - at),
                                            Access::write, "keep the model");
      if (!piece.ok()) throw_error(piece.error());
    }
  }
  const auto late = [&] {
    MutexLock lock(mutex_);
    return static_cast<int>(std::find(left_.begin(), left_.end(), false) - left_.begin());
  };
  {
    MutexLock lock(mutex_);
    left_[static_cast<size_t>(rank())] = true;
  }
  check(exchange_->tell_all({kParted, 0, 0}));
  check(exchange_->wait(
      "part", [&] { return late() == ranks(); }, late));
}

uint64_t Sharding::values_asked_by_others() const {
  return *std::max_element(sums_.begin(), sums_.end());
}

std::optional<int> Sharding::guide() const {
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  MutexLock lock(mutex_);
  if (std::find(followed_.begin(), followed_.end(), step) == followed_.end()) return std::nullopt;
  const auto leads = [&](uint64_t followed) { return followed != step; };
  return static_cast<int>(std::find_if(followed_.begin(), followed_.end(), leads) -
                          followed_.begin());
}

Sharding::Others Sharding::await_others() {
  const Phase phase(*this, "done, waiting for the others to leave");
  follows_ = true;
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  {
    MutexLock lock(mutex_);
    leaving_[static_cast<size_t>(rank())] = true;
  }
  check(exchange_->tell_all({kLeaving, 0, 0}));
  Others others = Others::are_done;
  check(exchange_->wait(
      "leave",
      [&] {
        MutexLock lock(mutex_);
        if (std::all_of(leaving_.begin(), leaving_.end(), std::identity())) {
          others = Others::are_done;
          return true;
        }
        if (values_asked_by_others() > values_asked_) {
          others = Others::sum;
          return true;
        }
        others = reduction_->others_have_ended(reduction_->round()) ? Others::reduce : Others::step;
        if (others == Others::reduce) return true;
        bool step_begins = true;
        for (size_t i = 0; i < steps_.size(); ++i)
          step_begins = step_begins && (leaving_[i] || steps_[i] >= step);
        return step_begins;
      },
      [] { return -1; }, Exchange::Timeout::none));
  return others;
}

}  // namespace bottomless
