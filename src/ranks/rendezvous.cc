#include "ranks/rendezvous.h"

#include <exception>
#include <utility>

#include "io/store.h"

namespace bottomless {
namespace {

enum What : uint64_t { kCame, kGoesOn };

constexpr Bytes kPieceBytes = 4 * Store::kAlignment;
constexpr int kSignsPerDeadline = 8;
constexpr Bytes kMostSaid = 64_MiB;  // by one rank at once

}  // namespace

Result<std::unique_ptr<Rendezvous>> Rendezvous::start(Transport& transport,
                                                      RendezvousOptions options) {
  std::unique_ptr<Rendezvous> rendezvous(new Rendezvous(std::move(options)));
  Rendezvous* const self = rendezvous.get();
  {
    MutexLock lock(self->mutex_);
    self->others_.resize(static_cast<size_t>(transport.ranks()));
  }
  Result<std::unique_ptr<Exchange>> exchange = Exchange::start(
      transport,
      {.deadline = self->options_.deadline,
       .piece_bytes = kPieceBytes,
       .on_notice = [self](int from, const Notice& notice) { self->on_notice(from, notice); },
       .phase =
           [self] {
             MutexLock lock(self->mutex_);
             return self->at_;
           },
       .clock = self->options_.clock});
  if (!exchange.ok()) return exchange.error();
  rendezvous->exchange_ = std::move(exchange).value();
  return rendezvous;
}

Rendezvous::~Rendezvous() {
  if (exchange_ == nullptr) return;
  const bool well = !failed_ && std::uncaught_exceptions() == 0;
  if (well && number_ > 0) {
    const Bytes wanted = said_[number_ % 2].size() * static_cast<Bytes>(exchange_->ranks() - 1);
    // A rank that ends meanwhile has heard enough.
    (void)exchange_->wait(
        options_.purpose, [&] { return exchange_->given(number_ % 2) >= wanted; },
        [] { return -1; });
  }
  exchange_->close(well ? Exchange::Shutdown::orderly : Exchange::Shutdown::abort);
}

Bytes Rendezvous::own_memory(int ranks) { return Exchange::own_memory(ranks, kPieceBytes); }

void Rendezvous::on_notice(int from, const Notice& notice) {
  MutexLock lock(mutex_);
  Other& other = others_[static_cast<size_t>(from)];
  ++other.signs;
  if (notice.what != kCame) return;
  other.came = notice.first;
  other.bytes[notice.first % 2] = notice.second;
}

void Rendezvous::set_phase(std::string what) {
  {
    MutexLock lock(mutex_);
    at_ = std::move(what);
  }
  heartbeat();
}

void Rendezvous::heartbeat() {
  const Clock::TimePoint now = options_.clock->now();
  if (now - last_sign_ < options_.deadline / kSignsPerDeadline) return;
  last_sign_ = now;
  (void)exchange_->tell_all({kGoesOn});  // who cannot be reached any more is missed when all meet
}

int Rendezvous::late() const {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < others_.size(); ++i) {
    if (static_cast<int>(i) != exchange_->rank() && others_[i].came < number_)
      return static_cast<int>(i);
  }
  return -1;
}

uint64_t Rendezvous::signs_of(int rank) const {
  MutexLock lock(mutex_);
  return rank < 0 ? 0 : others_[static_cast<size_t>(rank)].signs;
}

Result<void> Rendezvous::wait_for_all() {
  for (;;) {
    const int before = late();
    const uint64_t signs = signs_of(before);
    Result<void> came = exchange_->wait(
        options_.purpose, [this] { return late() < 0; }, [this] { return late(); });
    if (came.ok()) return came;
    // One that has ended fails the next wait at once, and gives no sign meanwhile.
    if (late() == before && signs_of(before) == signs) return came;
  }
}

Result<std::vector<std::vector<std::byte>>> Rendezvous::meet(std::span<const std::byte> own) {
  // Everybody has come to the rendezvous before this one, so everybody has heard what was said in the one before that.
  const uint64_t key = ++number_ % 2;
  exchange_->withdraw(key);
  std::vector<std::byte>& said = said_[key];
  said.assign(own.begin(), own.end());
  exchange_->offer(key, number_, {.address = said.data(), .bytes = said.size()});
  std::vector<std::vector<std::byte>> heard(static_cast<size_t>(exchange_->ranks()));
  // Who cannot be told has ended, and then the wait says so, for this purpose.
  const Result<void> told = exchange_->tell_all({kCame, number_, said.size()});
  Result<void> done = wait_for_all();
  if (done.ok()) done = told;
  for (int from = 0; from < exchange_->ranks() && done.ok(); ++from) {
    std::vector<std::byte>& theirs = heard[static_cast<size_t>(from)];
    if (from == exchange_->rank()) {
      theirs = said;
      continue;
    }
    Bytes bytes = 0;
    {
      MutexLock lock(mutex_);
      bytes = others_[static_cast<size_t>(from)].bytes[key];
    }
    if (bytes > kMostSaid) {
      done = Error{Code::io, options_.purpose + ": rank " + std::to_string(from) + " has " +
                                 format_bytes(bytes) + " to say: more than any rank does"};
      continue;
    }
    theirs.resize(bytes);
    if (theirs.empty()) continue;
    done = exchange_->pull_now(
        {.from = from, .key = key, .version = number_, .into = theirs, .what = options_.purpose});
  }
  if (done.ok()) return heard;
  failed_ = true;
  return done.error();
}

}  // namespace bottomless
