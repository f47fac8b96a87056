// What happens in every step; how a model becomes sharded is in shard_model.cc.
#include "torch/sharding.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "torch/errors.h"
#include "torch/interceptor.h"
#include "torch/managed.h"
#include "torch/process.h"
#include "torch/shard_roles.h"

namespace bottomless {
namespace {

// Notice::what, besides Reduction's.
constexpr uint64_t kStepBegins = 3, kWritten = 4, kLeaving = 5, kStepFollows = 6, kSums = 7,
                   kParted = 8;

void check(Result<void> outcome) {
  if (!outcome.ok()) throw_error(outcome.error());
}

}  // namespace

// For others who wait for this rank.
class Sharding::Doing {
 public:
  Doing(Sharding& sharding, const char* what)
      : sharding_(sharding), before_(sharding.phase_.exchange(what, std::memory_order_relaxed)) {}
  ~Doing() { sharding_.phase_.store(before_, std::memory_order_relaxed); }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Sharding& sharding_;
  const char* before_;
};

std::string Sharding::describe() const {
  return "step " + std::to_string(steps()) + ", " + phase_.load(std::memory_order_relaxed) +
         ", last operator " + OperatorScope::latest();
}

Sharding::~Sharding() { close(); }

void Sharding::close(Exchange::Farewell farewell) {
  if (exchange_ && reduction_) reduction_->close();
  if (exchange_) exchange_->close(farewell);
  if (charged_ > 0) engine().discharge(std::exchange(charged_, 0));
}

void Sharding::noticed(int from, const Notice& notice) {
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
      MutexLock lock(mutex_);
      written_elsewhere_.emplace_back(notice.second, notice.first);
      return;
    }
    case kParted: {
      MutexLock lock(mutex_);
      parted_[rank] = true;
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
      reduction_->noticed(from, notice);
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
  check(reduction_->contribute(parameter, std::move(given)));
}

std::vector<at::Tensor> Sharding::reduce() {
  const Doing doing(*this, "waiting until all gradients are reduced");
  contributed_ = false;
  reduced_ = true;
  check(reduction_->end_round());
  check(reduction_->wait_for_rounds());
  return reduction_->take();
}

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
    const Parameter& parameter = parameters_[i];
    const bool written = parameter.gather == nullptr
                             ? differs_from_share(parameter)
                             : engine().written_here(parameter.whole.storage().data());
    if (written) write(i);
  }
  for (const size_t i : touched) {
    if (!written_[i] && !reduction_->changed(i)) write(i);
  }
  check(exchange_->tell_all({follows_ ? kStepFollows : kStepBegins, step, rounds}));
}

std::vector<at::Tensor> Sharding::begin_step(const std::vector<size_t>& touched) {
  std::vector<at::Tensor> sums(parameters_.size());
  if (contributed_ || !reduced_) sums = reduce();
  const Doing doing(*this, "waiting until all ranks begin the step");
  announce_step(touched);
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  const auto slowest = [&] {
    MutexLock lock(mutex_);
    return static_cast<int>(std::min_element(steps_.begin(), steps_.end()) - steps_.begin());
  };
  check(exchange_->wait(
      "begin step " + std::to_string(step),
      [&] {
        const auto late = static_cast<size_t>(slowest());
        MutexLock lock(mutex_);
        return steps_[late] >= step;
      },
      slowest));
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
    const std::vector<at::Tensor> more = reduction_->take();
    for (size_t i = 0; i < more.size(); ++i) {
      if (!more[i].defined()) continue;
      if (sums[i].defined()) {
        sums[i].add_(more[i]);
      } else {
        sums[i] = more[i];
      }
    }
  }
  // Whoever has begun a fetch ahead shall not read what is being written; it is outdated anyway.
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (reduction_->changed(i) || written_[i]) exchange_->withdraw(role_key(Role::parameter, i));
  }
  take_over_writes();
  return sums;
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

void Sharding::end_step() {
  const Doing doing(*this, "fetching what the step has changed");
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

void Sharding::renew(size_t index) {
  Parameter& parameter = parameters_[index];
  written_[index] = false;
  ++parameter.version;
  const Share share = parameter.shares[static_cast<size_t>(rank())];
  if (share.bytes() > 0) {
    exchange_->offer(
        role_key(Role::parameter, index), parameter.version,
        offered(parameter.slice, share.begin, element_of(parameter.slice.scalar_type())));
  }
  if (parameter.gather == nullptr) return;
  parameter.gather->renew(parameter.version);
  engine().outdate(parameter.whole.storage().data());
}

// Whoever has begun a fetch ahead shall not read what is being written.
void Sharding::begin_renewal() {
  for (size_t i = 0; i < parameters_.size(); ++i) exchange_->withdraw(role_key(Role::parameter, i));
}

void Sharding::end_renewal() {
  const Doing doing(*this, "fetching new parameters");
  for (size_t i = 0; i < parameters_.size(); ++i) renew(i);
  fetch_small(std::vector<bool>(parameters_.size(), true));
}

void Sharding::adopt_writes() {
  const Doing doing(*this, "taking over what was written to parameters");
  at::Tensor written = at::zeros({static_cast<int64_t>(size())}, at::kDouble);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const bool own = parameter.gather == nullptr
                         ? differs_from_share(parameter)
                         : engine().written_here(parameter.whole.storage().data());
    if (own) written[static_cast<int64_t>(i)] = 1.0;
  }
  written = sum_over_ranks(written);  // and now nobody needs the old content any more
  std::vector<bool> changed(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    changed[i] = written[static_cast<int64_t>(i)].item<double>() > 0;
    if (changed[i]) exchange_->withdraw(role_key(Role::parameter, i));
  }
  take_over_writes();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (changed[i]) renew(i);
  }
  fetch_small(changed);
}

// All at the same time.
void Sharding::fetch_small(const std::vector<bool>& changed) {
  Mutex mutex;
  size_t missing = 0;
  std::optional<Error> failure;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (!changed[i] || parameter.gather != nullptr || parameter.whole.numel() == 0) continue;
    for (size_t from = 0; from < parameter.shares.size(); ++from) {
      const Share share = parameter.shares[from];
      if (share.bytes() == 0) continue;
      {
        MutexLock lock(mutex);
        ++missing;
      }
      auto* at = static_cast<std::byte*>(parameter.whole.data_ptr()) + share.begin;
      (void)exchange_->pull({.from = static_cast<int>(from),
                             .key = role_key(Role::parameter, i),
                             .version = parameter.version,
                             .offset = share.begin,
                             .into = {at, share.bytes()},
                             .what = "fetch '" + parameter.name + "'",
                             .done = [&](Result<void> outcome) {
                               MutexLock lock(mutex);
                               if (!outcome.ok() && !failure) failure = std::move(outcome).error();
                               --missing;
                             }});
    }
  }
  // Every pull ends by itself, if only by its deadline, and its memory is this function's.
  (void)exchange_->wait(
      "fetch small parameters",
      [&] {
        MutexLock lock(mutex);
        return missing == 0;
      },
      [] { return -1; }, Exchange::Patience::endless);
  for (;;) {
    MutexLock lock(mutex);
    if (missing == 0) break;
  }
  if (failure) throw_error(*failure);
}

Exchange::Key Sharding::offer_values(const at::Tensor& values, int to_ranks) {
  const Exchange::Key key = role_key(Role::values, ++values_asked_);
  if (to_ranks == 0) return key;
  values_.push_back({key, values, values.nbytes() * static_cast<Bytes>(to_ranks)});
  exchange_->offer(key, 1, offered(values, 0, Element::bytes));  // which may be managed
  return key;
}

void Sharding::forget_values() {
  std::erase_if(values_, [&](const Values& values) {
    if (exchange_->given(values.key) < values.wanted) return false;
    exchange_->withdraw(values.key);
    return true;
  });
}

at::Tensor Sharding::sum_over_ranks(const at::Tensor& values) {
  const Doing doing(*this, "exchanging sums");
  const at::Tensor own = values.to(at::kDouble).contiguous().clone();
  const Exchange::Key key = offer_values(own, ranks() - 1);
  check(exchange_->tell_all({kSums, values_asked_, 0}));
  at::Tensor sum = at::zeros_like(own);
  at::Tensor theirs = at::empty_like(own);
  for (int from = 0; from < ranks(); ++from) {
    if (from == rank()) {
      sum.add_(own);
      continue;
    }
    pull_into(theirs, from, key, 1, 0, "exchange sums");
    sum.add_(theirs);
  }
  forget_values();
  return sum;
}

void Sharding::copy_from_first(const at::Tensor& tensor) {
  const Doing doing(*this, "taking buffers over from rank 0");
  const at::Tensor copy = tensor.contiguous().clone();
  const Exchange::Key key = offer_values(copy, rank() == 0 ? ranks() - 1 : 0);
  if (rank() != 0 && copy.nbytes() > 0) {
    pull_into(copy, 0, key, 1, 0, "take buffers over");
    tensor.copy_(copy);
  }
  forget_values();
}

void Sharding::pull_into(const at::Tensor& into, int from, Exchange::Key key, uint64_t version,
                         Bytes offset, const std::string& what) {
  for (Bytes done = 0; done < into.nbytes(); done += piece_bytes_) {
    const Bytes bytes = std::min<Bytes>(piece_bytes_, into.nbytes() - done);
    Result<PinnedRange> range = pin_range(into, done, bytes, Access::write, what);
    if (!range.ok()) throw_error(range.error());
    check(exchange_->pull_now({.from = from,
                               .key = key,
                               .version = version,
                               .offset = offset + done,
                               .into = {range.value().at, bytes},
                               .what = what}));
  }
}

void Sharding::publish(int64_t number, const at::Tensor& tensor) {
  const Bytes first = 0;
  exchange_->offer(role_key(Role::published, static_cast<uint64_t>(number)), 1,
                   offered(tensor, first, Element::bytes));
}

void Sharding::retract(int64_t number) {
  exchange_->withdraw(role_key(Role::published, static_cast<uint64_t>(number)));
}

void Sharding::read(int rank, int64_t number, Bytes offset, const at::Tensor& into) {
  pull_into(into, rank, role_key(Role::published, static_cast<uint64_t>(number)), 1, offset,
            "read a tensor");
}

void Sharding::part(Model model) {
  const Doing doing(*this, "parting from the others");
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
    return static_cast<int>(std::find(parted_.begin(), parted_.end(), false) - parted_.begin());
  };
  {
    MutexLock lock(mutex_);
    parted_[static_cast<size_t>(rank())] = true;
  }
  check(exchange_->tell_all({kParted, 0, 0}));
  check(exchange_->wait(
      "part", [&] { return late() == ranks(); }, late));
}

uint64_t Sharding::values_asked_by_others() const {
  return *std::max_element(sums_.begin(), sums_.end());
}

bool Sharding::somebody_follows() const {
  const uint64_t step = step_.load(std::memory_order_relaxed) + 1;
  MutexLock lock(mutex_);
  return std::find(followed_.begin(), followed_.end(), step) != followed_.end();
}

void Sharding::wait_until_given(int64_t number, Bytes bytes) {
  const Exchange::Key key = role_key(Role::published, static_cast<uint64_t>(number));
  check(exchange_->wait(
      "wait until others have read a tensor", [&] { return exchange_->given(key) >= bytes; },
      [] { return -1; }));
}

Sharding::Others Sharding::await_others() {
  const Doing doing(*this, "done, waiting for the others to leave");
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
      [] { return -1; }, Exchange::Patience::endless));
  return others;
}

}  // namespace bottomless
