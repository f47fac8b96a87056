#include "ranks/reduction.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "ranks/shard_protocol.h"

namespace bottomless {
namespace {

Need need_of(const ReducedTensor& tensor, Access access) {
  return {.address = tensor.memory.address, .bytes = tensor.memory.bytes, .access = access};
}

// Work that was announced to the engine is done with it.
void end_announced_use(const ReducedTensor& tensor) {
  if (tensor.memory.engine != nullptr)
    tensor.memory.engine->end_announced_use(need_of(tensor, Access::read));
}

}  // namespace

Reduction::Reduction(std::vector<ReducedParameter> parameters, const ReductionOptions& options,
                     ReductionHooks hooks)
    : parameters_(std::move(parameters)),
      options_(options),
      hooks_(std::move(hooks)),
      work_(parameters_.size()),
      ended_(static_cast<size_t>(options.ranks), 0),
      turns_(parameters_.size(), 0) {}

Result<void> Reduction::start(Exchange& exchange) {
  exchange_ = &exchange;
  Result<Thread> thread = Thread::start("bl-reduce", [this] { run(); });
  if (!thread.ok()) return std::move(thread).error();
  thread_ = std::move(thread).value();
  return {};
}

Reduction::~Reduction() { close(); }

void Reduction::close() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

// Round and turn are small numbers that tell neighbours apart.
Exchange::Key Reduction::key_of(size_t parameter, uint64_t round, uint32_t turn) const {
  return role_key(Role::gradient, (round & 0xFFFF) << 40 | uint64_t{turn & 0xFFFF} << 24 |
                                      static_cast<uint64_t>(parameter));
}

// Others take a gradient when they have theirs, since the order of a sum is fixed. What they have not taken fills memory and
// pushes out what this rank needs. But they may take other ways through the model: then nothing moves until the round ends.
Result<void> Reduction::wait_for_takers(Bytes bytes) {
  constexpr auto kTimeout = std::chrono::seconds(1);
  constexpr uint32_t kMostDoublings = 10;
  const auto waiting = [&]() BOTTOMLESS_REQUIRES(mutex_) {
    Bytes sum = bytes;
    for (const Contribution& each : contributions_) sum += each.gradient.memory.bytes;
    return sum;
  };
  {
    MutexLock lock(mutex_);
    if (round_ < waits_from_ || waiting() <= options_.most_waiting) return {};
  }
  Bytes least = ~Bytes{0};
  auto moved = std::chrono::steady_clock::now();
  bool vain = false;
  Result<void> waited = exchange_->wait(
      "reduce gradients",
      [&] {
        free_given();
        MutexLock lock(mutex_);
        const Bytes now = waiting();
        if (failure_ || now == bytes || now <= options_.most_waiting) return true;
        if (now < least) moved = std::chrono::steady_clock::now();
        least = std::min(least, now);
        return vain = std::chrono::steady_clock::now() - moved >= kTimeout;
      },
      [&] { return late_rank(); });
  if (!waited.ok()) return waited;
  MutexLock lock(mutex_);
  useless_waits_ = vain ? std::min(useless_waits_ + 1, kMostDoublings) : 0;
  if (vain) waits_from_ = round_ + (uint64_t{1} << useless_waits_);
  return {};
}

Result<ReducedTensor> Reduction::sum_of(size_t parameter) {
  {
    MutexLock lock(mutex_);
    if (work_[parameter].sum.tensor != nullptr) return work_[parameter].sum;
  }
  Result<ReducedTensor> made = hooks_.new_sum(parameter);
  if (!made.ok()) return made;
  MutexLock lock(mutex_);
  work_[parameter].begun = false;
  return work_[parameter].sum = made.value();
}

// A plan finds both at the same place in every step, whenever the thread comes to add them.
Result<void> Reduction::announce_use(size_t parameter, const ReducedTensor& gradient) {
  std::vector<Need> needs;
  Engine* const engine = gradient.memory.engine;
  if (engine != nullptr) needs.push_back(need_of(gradient, Access::read));
  if (parameters_[parameter].shares[static_cast<size_t>(options_.rank)].bytes() > 0) {
    Result<ReducedTensor> sum = sum_of(parameter);
    if (!sum.ok()) return std::move(sum).error();
    if (engine != nullptr && sum.value().memory.engine == engine) {
      MutexLock lock(mutex_);
      needs.push_back(need_of(sum.value(), Access::write));
      needs.back().overwritten = !work_[parameter].begun;
    }
  }
  if (engine != nullptr) engine->announce_use(needs, "reduce gradients");
  return {};
}

Result<void> Reduction::contribute(size_t parameter, ReducedTensor gradient) {
  if (Result<void> waited = wait_for_takers(gradient.memory.bytes); !waited.ok()) return waited;
  if (Result<void> told = announce_use(parameter, gradient); !told.ok()) return told;
  uint64_t round = 0;
  uint32_t turn = 0;
  {
    MutexLock lock(mutex_);
    if (failure_) return *failure_;
    round = round_;
    turn = turns_[parameter]++;
    const Exchange::Key key = key_of(parameter, round, turn);
    exchange_->offer(key, 1, gradient.memory);
    contributions_.push_back({parameter, key, std::move(gradient)});
    note_ready(parameter, options_.rank, round, turn);
  }
  return exchange_->tell_all(encode(
      GradientReady{.parameter = parameter, .round = static_cast<uint32_t>(round), .turn = turn}));
}

void Reduction::note_ready(size_t parameter, int rank, uint64_t round, uint32_t turn) {
  Work& work = work_[parameter];
  auto& ranks = work.ready[{round, turn}];
  ranks.resize(static_cast<size_t>(options_.ranks));
  ranks[static_cast<size_t>(rank)] = true;
  work.rounds.insert(round);
  changed_.notify_all();
}

void Reduction::fail_because_of(int rank, uint64_t parameter) {
  if (!failure_)
    failure_ = Error{Code::io, "reduce gradients: rank " + std::to_string(rank) +
                                   " spoke of parameter " + std::to_string(parameter) +
                                   ", and there are " + std::to_string(work_.size()) +
                                   " of them; do all ranks run the same program?"};
  changed_.notify_all();
}

void Reduction::told_of_unknown(int rank, uint64_t parameter) {
  MutexLock lock(mutex_);
  fail_because_of(rank, parameter);
}

void Reduction::on_notice(int from, const Notice& notice) {
  MutexLock lock(mutex_);
  const ShardNotice decoded = decode(notice);
  if (const auto* ready = std::get_if<GradientReady>(&decoded)) {
    if (ready->parameter < work_.size()) {
      note_ready(ready->parameter, from, ready->round, ready->turn);
    } else {
      fail_because_of(from, ready->parameter);
    }
  } else if (const auto* ends = std::get_if<RoundEnds>(&decoded)) {
    auto& ended = ended_[static_cast<size_t>(from)];
    ended = std::max(ended, ends->round + 1);
    changed_.notify_all();
  }
}

void Reduction::end_rounds_of(int rank, uint64_t rounds) {
  MutexLock lock(mutex_);
  auto& ended = ended_[static_cast<size_t>(rank)];
  ended = std::max(ended, rounds);
  changed_.notify_all();
}

Result<void> Reduction::end_round() {
  uint64_t round = 0;
  {
    MutexLock lock(mutex_);
    round = round_++;
    ended_[static_cast<size_t>(options_.rank)] = round_;
    std::fill(turns_.begin(), turns_.end(), 0);
    changed_.notify_all();
  }
  return exchange_->tell_all(encode(RoundEnds{round}));
}

void Reduction::skip_to_round(uint64_t round) {
  MutexLock lock(mutex_);
  round_ = allowed_ = std::max(round_, round);
  for (uint64_t& ended : ended_) ended = std::max(ended, round_);
  std::fill(turns_.begin(), turns_.end(), 0);
  changed_.notify_all();
}

uint64_t Reduction::round() const {
  MutexLock lock(mutex_);
  return round_;
}

std::optional<Error> Reduction::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

int Reduction::late_rank() {
  MutexLock lock(mutex_);
  const auto least = std::min_element(ended_.begin(), ended_.end());
  return static_cast<int>(least - ended_.begin());
}

Result<void> Reduction::wait_for_rounds() {
  const uint64_t rounds = round();
  Result<void> waited = exchange_->wait(
      "reduce gradients",
      [&] {
        MutexLock lock(mutex_);
        if (failure_) return true;
        const auto has_ended = [&](uint64_t ended) { return ended >= rounds; };
        if (busy_ || !std::all_of(ended_.begin(), ended_.end(), has_ended)) return false;
        return std::all_of(work_.begin(), work_.end(), [&](const Work& work) {
          return work.round >= rounds || work.ready.empty();
        });
      },
      [&] { return late_rank(); });
  if (!waited.ok()) return waited;
  if (std::optional<Error> failed = failure()) return std::move(*failed);
  return {};
}

std::vector<ReducedTensor> Reduction::take() {
  std::vector<ReducedTensor> sums;
  {
    MutexLock lock(mutex_);
    for (Work& work : work_) sums.push_back(std::exchange(work.sum, {}));
    allowed_ = round_;
    changed_.notify_all();
  }
  // Where a rank was passed over, nobody knew that a part was the last.
  for (const ReducedTensor& sum : sums) {
    if (sum.tensor != nullptr) end_announced_use(sum);
  }
  return sums;
}

bool Reduction::changed(size_t parameter) const {
  MutexLock lock(mutex_);
  const std::set<uint64_t>& rounds = work_[parameter].rounds;
  return !rounds.empty() && *rounds.begin() < round_;
}

void Reduction::forget_changes(size_t parameter) {
  MutexLock lock(mutex_);
  std::set<uint64_t>& rounds = work_[parameter].rounds;
  rounds.erase(rounds.begin(), rounds.lower_bound(round_));
}

bool Reduction::others_have_ended(uint64_t round) const {
  MutexLock lock(mutex_);
  return std::any_of(ended_.begin(), ended_.end(), [&](uint64_t ended) { return ended > round; });
}

// What can be added next for the parameter, if anything: the turn goes round from this rank on, and passes over those
// that have ended the round without it.
std::optional<Reduction::Task> Reduction::advance(size_t parameter) {
  Work& work = work_[parameter];
  const int ranks = options_.ranks;
  for (;;) {
    if (work.ready.empty()) {
      // Nobody has more for now. Rounds that are over for all need not be looked at again.
      const uint64_t over = *std::min_element(ended_.begin(), ended_.end());
      if (over > work.round) {
        work.round = over;
        work.turn = 0;
        work.at = 0;
      }
      return std::nullopt;
    }
    if (work.round > allowed_) return std::nullopt;
    while (work.at < ranks) {
      const int rank = (options_.rank + work.at) % ranks;
      const auto found = work.ready.find({work.round, work.turn});
      if (found != work.ready.end() && found->second[static_cast<size_t>(rank)])
        return Task{parameter, rank, work.round, work.turn};
      // A later turn of the same rank says as well that this one had nothing to wait for; turns come in order.
      if (ended_[static_cast<size_t>(rank)] <= work.round) return std::nullopt;
      ++work.at;
    }
    work.ready.erase({work.round, work.turn});
    work.at = 0;
    // The next turn of this round, or the round of what is there.
    const bool more = !work.ready.empty() && work.ready.begin()->first.first == work.round;
    const uint64_t over = *std::min_element(ended_.begin(), ended_.end());
    if (more) {
      work.turn = work.ready.begin()->first.second;
    } else if (over <= work.round) {
      ++work.turn;  // somebody may have another gradient for this round: a second backward pass
    } else {
      ++work.round;
      work.turn = 0;
    }
  }
}

std::optional<Reduction::Task> Reduction::next_task() {
  for (size_t i = 0; i < work_.size(); ++i) {
    if (std::optional<Task> task = advance(i)) return task;
  }
  return std::nullopt;
}

void Reduction::run() {
  hooks_.prepare();
  for (;;) {
    std::optional<Task> task;
    {
      MutexLock lock(mutex_);
      busy_ = false;
      while (!closing_ && (failure_ || !(task = next_task()))) {
        // Ranks that wait for the end of a round are told by the exchange's own pulse.
        changed_.wait_for(mutex_, std::chrono::milliseconds(20));
        if (!contributions_.empty()) break;
      }
      if (closing_) return;
      busy_ = task.has_value();
    }
    if (task) {
      Result<void> added = add(*task);
      MutexLock lock(mutex_);
      if (added.ok()) {
        ++work_[task->parameter].at;
        work_[task->parameter].begun = true;
      } else {
        failure_ = std::move(added).error();
      }
    }
    free_given();
    exchange_->nudge();
  }
}

void Reduction::free_given() {
  std::vector<Contribution> given;
  {
    MutexLock lock(mutex_);
    std::erase_if(contributions_, [&](Contribution& each) {
      const Bytes whole = parameters_[each.parameter].shares.back().end;
      if (exchange_->given(each.key) < whole) return false;
      given.push_back(std::move(each));
      return true;
    });
  }
  for (const Contribution& each : given) {
    exchange_->withdraw(each.key);
    end_announced_use(each.gradient);
  }
}

Result<void> Reduction::add(const Task& task) {
  const ReducedParameter& parameter = parameters_[task.parameter];
  const Share share = parameter.shares[static_cast<size_t>(options_.rank)];
  if (share.bytes() == 0) return {};
  Result<ReducedTensor> made = sum_of(task.parameter);
  if (!made.ok()) return std::move(made).error();
  const ReducedTensor sum = std::move(made).value();
  bool first = false, last = false;
  {
    MutexLock lock(mutex_);
    first = !work_[task.parameter].begun;
    last = work_[task.parameter].at + 1 == options_.ranks;
  }
  // While one piece is added, the next one is on its way.
  struct Arrival {
    std::optional<Result<void>> outcome;
  };
  std::array<std::shared_ptr<Arrival>, 2> arrivals;
  const auto ask = [&](Bytes at) {
    const size_t which = at / options_.piece_bytes % 2;
    const Bytes bytes = std::min(options_.piece_bytes, share.bytes() - at);
    buffers_[which].resize(bytes);
    auto arrival = arrivals[which] = std::make_shared<Arrival>();
    (void)exchange_->pull({.from = task.from,
                           .key = key_of(task.parameter, task.round, task.turn),
                           .version = 1,
                           .offset = share.begin + at,
                           .into = buffers_[which],
                           .format = options_.format,
                           .element = parameter.element,
                           .what = "reduce the gradient of '" + parameter.name + "'",
                           .done = [this, arrival](Result<void> outcome) {
                             MutexLock lock(mutex_);
                             arrival->outcome = std::move(outcome);
                             changed_.notify_all();
                           }});
  };
  const auto wait_for = [&](size_t which) -> Result<void> {
    MutexLock lock(mutex_);
    while (!arrivals[which]->outcome) changed_.wait(mutex_);
    return std::move(*arrivals[which]->outcome);
  };
  ask(0);
  for (Bytes at = 0; at < share.bytes(); at += options_.piece_bytes) {
    const size_t which = at / options_.piece_bytes % 2;
    if (at + options_.piece_bytes < share.bytes()) ask(at + options_.piece_bytes);
    Result<void> arrived = wait_for(which);
    if (arrived.ok()) arrived = hooks_.add(sum, first, at, buffers_[which]);
    if (!arrived.ok()) {
      // What was asked for writes into these buffers until it is done.
      if (at + options_.piece_bytes < share.bytes()) (void)wait_for(1 - which);
      return arrived;
    }
  }
  if (last) end_announced_use(sum);
  return {};
}

}  // namespace bottomless
