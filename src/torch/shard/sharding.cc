// What happens in every step. How a model becomes sharded is in shard_model.cc, how its parameters get new content in
// shard_renewal.cc, what ranks give each other besides in shard_values.cc, and how they part in shard_leaving.cc.
#include "torch/shard/sharding.h"

#include <algorithm>
#include <utility>

#include "ranks/shard_protocol.h"
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

// What was written outside of the optimizer, here or because of a gradient from before.
void Sharding::tell_writes(const std::vector<size_t>& touched, uint64_t step) {
  const auto write = [&](size_t parameter) {
    written_[parameter] = true;
    check(protocol_->tell_written(parameter, step));
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (was_written(parameters_[i])) write(i);
  }
  for (const size_t i : touched) {
    if (!written_[i] && !reduction_->changed(i)) write(i);
  }
}

std::vector<at::Tensor> Sharding::begin_step(const std::vector<size_t>& touched) {
  std::vector<at::Tensor> sums(parameters_.size());
  if (contributed_ || !reduced_) sums = reduce();
  const Phase phase(*this, "waiting until all ranks begin the step");
  if (node_shares_) {
    if (std::optional<Error> failed = node_shares_->failure()) throw_error(*failed);
  }
  const uint64_t step = steps() + 1;
  tell_writes(touched, step);
  check(protocol_->begin(step, follows_, values_asked_));
  reduction_->free_given();  // all have had their parts
  for (const size_t parameter : protocol_->take_written(step)) written_[parameter] = true;
  const uint64_t rounds = protocol_->most_rounds();
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
