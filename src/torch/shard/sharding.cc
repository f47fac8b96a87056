// What happens in every step. How a model becomes sharded is in shard_model.cc, how its parameters get new content in
// shard_renewal.cc, what ranks give each other besides in shard_values.cc, and how they part in shard_leaving.cc.
#include "torch/shard/sharding.h"

#include <algorithm>
#include <utility>

#include "ranks/shard_roles.h"
#include "torch/errors.h"
#include "torch/intercept/interceptor.h"
#include "torch/intercept/managed.h"
#include "torch/shard/shard_phase.h"

namespace bottomless {

std::string Sharding::describe() const {
  return "step " + std::to_string(steps()) + ", " + phase_.load(std::memory_order_relaxed) +
         ", last operator " + OperatorScope::latest();
}

Sharding::~Sharding() { close(); }

void Sharding::close(Exchange::Shutdown shutdown) {
  if (exchange_ && reduction_) reduction_->close();
  if (node_shares_) node_shares_->close();
  if (exchange_) exchange_->close(shutdown);
  if (charged_ > 0) engine().discharge(std::exchange(charged_, 0));
}

void Sharding::on_notice(int from, const Notice& notice) {
  const auto rank = static_cast<size_t>(from);
  switch (notice.what) {
    case kStepBegins:
    case kStepFollows: {
      {
        MutexLock lock(mutex_);
        if (notice.what == kStepFollows) followed_[rank] = notice.first;
        steps_[rank] = notice.first;
        rounds_[rank] = notice.second;
      }
      reduction_->end_rounds_of(from, notice.second);
      return;
    }
    case kWritten: {
      if (notice.first >= parameters_.size()) {
        reduction_->told_of_unknown(from, notice.first);
        return;
      }
      MutexLock lock(mutex_);
      written_elsewhere_.emplace_back(notice.second, notice.first);
      return;
    }
    case kParted: {
      MutexLock lock(mutex_);
      left_[rank] = true;
      return;
    }
    case kSums: {
      MutexLock lock(mutex_);
      sums_[rank] = notice.first;
      return;
    }
    case kLeaving: {
      MutexLock lock(mutex_);
      leaving_[rank] = true;
      return;
    }
    default:
      reduction_->on_notice(from, notice);
  }
}

void Sharding::contribute(size_t parameter, const at::Tensor& gradient) {
  const at::Tensor& whole = parameters_[parameter].whole;
  at::Tensor given = gradient.detach();
  const bool fits = given.layout() == at::kStrided && given.strides() == whole.strides() &&
                    given.scalar_type() == whole.scalar_type() && given.storage_offset() == 0;
  if (!fits) {
    const at::NoGradGuard no_grad;
    given = at::empty_strided(whole.sizes(), whole.strides(), whole.options())
                .copy_(given.is_sparse() ? given.to_dense() : given);
  }
  if (Engine* engine = engine_of(given)) engine->set_kind(given.storage().data(), Kind::gradient);
  contributed_ = true;
  const Element element = element_of(given.scalar_type());
  check(reduction_->contribute(parameter, as_reduced(std::move(given), element)));
}

std::vector<at::Tensor> Sharding::reduce() {
  const Phase phase(*this, "waiting until all gradients are reduced");
  contributed_ = false;
  reduced_ = true;
  check(reduction_->end_round());
  check(reduction_->wait_for_rounds());
  return tensors_of(reduction_->take());
}

void Sharding::announce_step(const std::vector<size_t>& touched) {
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  const uint64_t rounds = reduction_->round();
  {
    MutexLock lock(mutex_);
    steps_[static_cast<size_t>(rank())] = step;
    rounds_[static_cast<size_t>(rank())] = rounds;
    if (follows_) followed_[static_cast<size_t>(rank())] = step;
  }
  const auto write = [&](size_t parameter) {
    written_[parameter] = true;
    check(exchange_->tell_all({kWritten, parameter, step}));
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (was_written(parameters_[i])) write(i);
  }
  for (const size_t i : touched) {
    if (!written_[i] && !reduction_->changed(i)) write(i);
  }
  check(exchange_->tell_all({follows_ ? kStepFollows : kStepBegins, step, rounds}));
}

// A rank that has not begun the step and sums up what this one has gone past: they would wait for each other.
std::optional<int> Sharding::waits_for_a_sum_before(uint64_t step) const {
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i] < step && sums_[i] > values_asked_) return static_cast<int>(i);
  }
  return std::nullopt;
}

std::vector<at::Tensor> Sharding::begin_step(const std::vector<size_t>& touched) {
  std::vector<at::Tensor> sums(parameters_.size());
  if (contributed_ || !reduced_) sums = reduce();
  const Phase phase(*this, "waiting until all ranks begin the step");
  if (node_shares_) {
    if (std::optional<Error> failed = node_shares_->failure()) throw_error(*failed);
  }
  announce_step(touched);
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  const auto slowest = [&] {
    MutexLock lock(mutex_);
    return static_cast<int>(std::min_element(steps_.begin(), steps_.end()) - steps_.begin());
  };
  std::optional<int> elsewhere;
  check(exchange_->wait(
      "begin step " + std::to_string(step),
      [&] {
        const auto late = static_cast<size_t>(slowest());
        MutexLock lock(mutex_);
        elsewhere = waits_for_a_sum_before(step);
        return elsewhere || steps_[late] >= step;
      },
      slowest));
  if (elsewhere) {
    throw_error({Code::invalid_argument,
                 "begin step " + std::to_string(step) + ": rank " + std::to_string(*elsewhere) +
                     " has asked for something that all ranks must ask for before it, a norm for "
                     "clip_grad_norm_ or a checkpoint, and rank " +
                     std::to_string(rank()) + " has not; do so on all ranks or on none"});
  }
  reduction_->free_given();  // all have had their parts
  uint64_t rounds = 0;
  {
    MutexLock lock(mutex_);
    rounds = *std::max_element(rounds_.begin(), rounds_.end());
    // Who is fast may have announced the step after this one.
    std::erase_if(written_elsewhere_, [&](const auto& written) {
      if (written.first > step) return false;
      written_[written.second] = true;
      return true;
    });
  }
  if (rounds > reduction_->round()) {
    // Somebody has had more rounds than this rank: their gradients belong to this step, too.
    reduction_->skip_to_round(rounds);
    check(reduction_->wait_for_rounds());
    const std::vector<at::Tensor> more = tensors_of(reduction_->take());
    for (size_t i = 0; i < more.size(); ++i) {
      if (!more[i].defined()) continue;
      if (sums[i].defined()) {
        sums[i].add_(more[i]);
      } else {
        sums[i] = more[i];
      }
    }
  }
  // Whoever has begun a fetch ahead shall not read what is being written; it is invalidated anyway.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (reduction_->changed(i) || written_[i]) hold_back(i);
  }
  take_over_writes();
  return sums;
}

void Sharding::end_step() {
  const Phase phase(*this, "fetching what the step has changed");
  std::vector<bool> changed_now(parameters_.size(), false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!reduction_->changed(i) && !written_[i]) continue;
    reduction_->forget_changes(i);
    changed_now[i] = true;
    renew(i);
  }
  fetch_small(changed_now);
  step_.fetch_add(1, std::memory_order_relaxed);
  reduced_ = false;
}

}  // namespace bottomless
