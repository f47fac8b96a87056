#include "ranks/step_protocol.h"

#include <algorithm>
#include <string>

namespace bottomless {

StepProtocol::StepProtocol(int rank, int ranks, size_t parameters, Reduction& reduction)
    : rank_(rank),
      parameters_(parameters),
      reduction_(reduction),
      peers_(static_cast<size_t>(ranks)) {}

void StepProtocol::on_notice(int from, const Notice& notice) {
  const ShardNotice decoded = decode(notice);
  if (const auto* begins = std::get_if<StepBegins>(&decoded)) {
    {
      MutexLock lock(mutex_);
      Peer& peer = peers_[static_cast<size_t>(from)];
      if (begins->follows) peer.followed = begins->step;
      peer.step = begins->step;
      peer.rounds = begins->rounds;
    }
    reduction_.end_rounds_of(from, begins->rounds);
  } else if (const auto* written = std::get_if<ParameterWritten>(&decoded)) {
    if (written->parameter >= parameters_) {
      reduction_.told_of_unknown(from, written->parameter);
      return;
    }
    MutexLock lock(mutex_);
    written_.push_back(*written);
  } else if (const auto* sum = std::get_if<SumAsked>(&decoded)) {
    MutexLock lock(mutex_);
    peers_[static_cast<size_t>(from)].sums = sum->number;
  } else if (std::holds_alternative<Leaving>(decoded)) {
    MutexLock lock(mutex_);
    peers_[static_cast<size_t>(from)].leaving = true;
  } else if (std::holds_alternative<Left>(decoded)) {
    MutexLock lock(mutex_);
    peers_[static_cast<size_t>(from)].left = true;
  } else {
    reduction_.on_notice(from, notice);
  }
}

Result<void> StepProtocol::tell_written(size_t parameter, uint64_t step) {
  return exchange_->tell_all(encode(ParameterWritten{.parameter = parameter, .step = step}));
}

// A rank that has not begun the step and sums up what this one has gone past: they would wait for each other.
std::optional<int> StepProtocol::sums_before(uint64_t step, uint64_t sums) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].step < step && peers_[i].sums > sums) return static_cast<int>(i);
  }
  return std::nullopt;
}

Result<void> StepProtocol::begin(uint64_t step, bool follows, uint64_t sums) {
  const uint64_t rounds = reduction_.round();
  {
    MutexLock lock(mutex_);
    own().step = step;
    own().rounds = rounds;
    if (follows) own().followed = step;
  }
  const StepBegins begins{.step = step, .rounds = rounds, .follows = follows};
  if (Result<void> told = exchange_->tell_all(encode(begins)); !told.ok()) return told;
  const auto slowest = [&] {
    MutexLock lock(mutex_);
    const auto by_step = [](const Peer& a, const Peer& b) { return a.step < b.step; };
    return static_cast<int>(std::min_element(peers_.begin(), peers_.end(), by_step) -
                            peers_.begin());
  };
  std::optional<int> elsewhere;
  Result<void> waited = exchange_->wait(
      "begin step " + std::to_string(step),
      [&] {
        const auto late = static_cast<size_t>(slowest());
        MutexLock lock(mutex_);
        elsewhere = sums_before(step, sums);
        return elsewhere || peers_[late].step >= step;
      },
      slowest);
  if (waited.ok() && elsewhere) {
    return Error{Code::invalid_argument,
                 "begin step " + std::to_string(step) + ": rank " + std::to_string(*elsewhere) +
                     " has asked for something that all ranks must ask for before it, a norm for "
                     "clip_grad_norm_ or a checkpoint, and rank " +
                     std::to_string(rank_) + " has not; do so on all ranks or on none"};
  }
  return waited;
}

uint64_t StepProtocol::most_rounds() const {
  MutexLock lock(mutex_);
  uint64_t most = 0;
  for (const Peer& peer : peers_) most = std::max(most, peer.rounds);
  return most;
}

std::vector<size_t> StepProtocol::take_written(uint64_t step) {
  std::vector<size_t> taken;
  MutexLock lock(mutex_);
  // Who is fast may have announced the step after this one.
  std::erase_if(written_, [&](const ParameterWritten& written) {
    if (written.step > step) return false;
    taken.push_back(written.parameter);
    return true;
  });
  return taken;
}

std::optional<int> StepProtocol::guide(uint64_t step) const {
  MutexLock lock(mutex_);
  const auto follows = [&](const Peer& peer) { return peer.followed == step; };
  if (std::none_of(peers_.begin(), peers_.end(), follows)) return std::nullopt;
  return static_cast<int>(std::find_if_not(peers_.begin(), peers_.end(), follows) - peers_.begin());
}

Result<void> StepProtocol::tell_sum(uint64_t number) {
  return exchange_->tell_all(encode(SumAsked{number}));
}

Result<StepProtocol::Others> StepProtocol::await_others(uint64_t next_step, uint64_t sums) {
  {
    MutexLock lock(mutex_);
    own().leaving = true;
  }
  if (Result<void> told = exchange_->tell_all(encode(Leaving{})); !told.ok())
    return std::move(told).error();
  Others others = Others::are_done;
  Result<void> waited = exchange_->wait(
      "leave",
      [&] {
        MutexLock lock(mutex_);
        const auto any_sums = [&](const Peer& peer) { return peer.sums > sums; };
        const auto begins_or_leaves = [&](const Peer& peer) {
          return peer.leaving || peer.step >= next_step;
        };
        if (std::ranges::all_of(peers_, &Peer::leaving)) {
          others = Others::are_done;
        } else if (std::ranges::any_of(peers_, any_sums)) {
          others = Others::sum;
        } else if (reduction_.others_have_ended(reduction_.round())) {
          others = Others::reduce;
        } else {
          others = Others::step;
          return std::ranges::all_of(peers_, begins_or_leaves);
        }
        return true;
      },
      [] { return -1; }, Exchange::Timeout::none);
  if (!waited.ok()) return std::move(waited).error();
  return others;
}

Result<void> StepProtocol::leave() {
  {
    MutexLock lock(mutex_);
    own().left = true;
  }
  if (Result<void> told = exchange_->tell_all(encode(Left{})); !told.ok()) return told;
  const auto late = [&] {
    MutexLock lock(mutex_);
    return static_cast<int>(std::ranges::find(peers_, false, &Peer::left) - peers_.begin());
  };
  return exchange_->wait(
      "part", [&] { return late() == exchange_->ranks(); }, late);
}

}  // namespace bottomless
