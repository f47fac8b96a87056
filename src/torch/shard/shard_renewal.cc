// How parameters get new content: from a step, from what a script has written to them, or from a checkpoint.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "ranks/shard_protocol.h"
#include "torch/errors.h"
#include "torch/intercept/managed.h"
#include "torch/shard/shard_phase.h"
#include "torch/shard/sharding.h"

namespace bottomless {

// What is too small to be managed has nobody who notices writes.
bool Sharding::differs_from_share(const Parameter& parameter) {
  const Share share = parameter.shares[static_cast<size_t>(rank())];
  if (share.bytes() == 0) return false;
  Result<PinnedRange> own =
      pin_range(parameter.slice, 0, share.bytes(), Access::read, "look for writes");
  if (!own.ok()) throw_error(own.error());
  const auto* whole = static_cast<const std::byte*>(parameter.whole.const_data_ptr());
  return std::memcmp(own.value().at, whole + share.begin, share.bytes()) != 0;
}

bool Sharding::was_written(const Parameter& parameter) {
  return parameter.gather == nullptr ? differs_from_share(parameter)
                                     : engine().written_here(parameter.whole.storage().data());
}

// What was written to a whole parameter is this rank's own; of it, its share is what counts.
void Sharding::take_over_writes() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const Share share = parameter.shares[static_cast<size_t>(rank())];
    if (share.bytes() == 0) continue;
    const bool small = parameter.gather == nullptr;
    if (!small && !engine().written_here(parameter.whole.storage().data())) continue;
    for (Bytes done = 0; done < share.bytes(); done += piece_bytes_) {
      const Bytes bytes = std::min(piece_bytes_, share.bytes() - done);
      Result<PinnedRange> from =
          pin_range(parameter.whole, share.begin + done, bytes, Access::read, "take over writes");
      if (!from.ok()) throw_error(from.error());
      Result<PinnedRange> to =
          pin_range(parameter.slice, done, bytes, Access::write, "take over writes");
      if (!to.ok()) throw_error(to.error());
      std::memcpy(to.value().at, from.value().at, bytes);
    }
  }
}

// Whoever has begun a fetch ahead shall not read what is being written; it is invalidated anyway.
void Sharding::hold_back(size_t index) {
  exchange_->withdraw(role_key(Role::parameter, index));
  if (NodeShares::Kept* const kept = parameters_[index].within_node) kept->invalidate();
}

void Sharding::offer_share(size_t index) {
  const Parameter& parameter = parameters_[index];
  Offered share = offered(parameter.slice, parameter.shares[static_cast<size_t>(rank())].begin,
                          element_of(parameter.slice.scalar_type()));
  share.askers = ranks();
  exchange_->offer(role_key(Role::parameter, index), parameter.version, share);
}

void Sharding::renew(size_t index) {
  Parameter& parameter = parameters_[index];
  written_[index] = false;
  ++parameter.version;
  const Share share = parameter.shares[static_cast<size_t>(rank())];
  if (share.bytes() > 0) offer_share(index);
  if (parameter.gather == nullptr) return;
  parameter.gather->renew(parameter.version);
  const void* const whole = parameter.whole.storage().data();
  engine().invalidate(whole);
  if (parameter.within_node != nullptr)
    parameter.within_node->renew(parameter.version, static_cast<const std::byte*>(whole));
}

void Sharding::begin_renewal() {
  for (size_t i = 0; i < parameters_.size(); ++i) hold_back(i);
}

void Sharding::end_renewal() {
  const Phase phase(*this, "fetching new parameters");
  for (size_t i = 0; i < parameters_.size(); ++i) renew(i);
  fetch_small(std::vector<bool>(parameters_.size(), true));
}

void Sharding::adopt_writes() {
  const Phase phase(*this, "taking over what was written to parameters");
  at::Tensor written = at::zeros({static_cast<int64_t>(size())}, at::kDouble);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (was_written(parameters_[i])) written[static_cast<int64_t>(i)] = 1.0;
  }
  written = sum_over_ranks(written);  // and now nobody needs the old content any more
  std::vector<bool> changed(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    changed[i] = written[static_cast<int64_t>(i)].item<double>() > 0;
    if (changed[i]) hold_back(i);
  }
  take_over_writes();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (changed[i]) renew(i);
  }
  fetch_small(changed);
}

// All at the same time.
void Sharding::fetch_small(const std::vector<bool>& changed) {
  struct Missing {  // shared: the last pull to end still uses it when this function goes on
    Mutex mutex;
    CondVar all_ended;
    size_t pulls BOTTOMLESS_GUARDED_BY(mutex) = 0;
    std::optional<Error> failure BOTTOMLESS_GUARDED_BY(mutex);
  };
  const auto missing = std::make_shared<Missing>();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!changed[i] || parameter.gather != nullptr || parameter.whole.numel() == 0) continue;
    for (size_t from = 0; from < parameter.shares.size(); ++from) {
      const Share share = parameter.shares[from];
      if (share.bytes() == 0) continue;
      {
        MutexLock lock(missing->mutex);
        ++missing->pulls;
      }
      auto* at = static_cast<std::byte*>(parameter.whole.data_ptr()) + share.begin;
      (void)exchange_->pull({.from = static_cast<int>(from),
                             .key = role_key(Role::parameter, i),
                             .version = parameter.version,
                             .offset = share.begin,
                             .into = {at, share.bytes()},
                             .what = "fetch '" + parameter.name + "'",
                             .done = [missing](Result<void> outcome) {
                               MutexLock lock(missing->mutex);
                               if (!outcome.ok() && !missing->failure)
                                 missing->failure = std::move(outcome).error();
                               if (--missing->pulls == 0) missing->all_ended.notify_all();
                             }});
    }
  }
  MutexLock lock(missing->mutex);
  // Every pull ends by itself, if only by its deadline.
  while (missing->pulls > 0) missing->all_ended.wait(missing->mutex);
  if (missing->failure) throw_error(*missing->failure);
}

}  // namespace bottomless
