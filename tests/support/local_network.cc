#include "support/local_network.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace bottomless {

class LocalNetwork::End final : public Transport {
 public:
  End(LocalNetwork& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int ranks() const override { return network_.ranks(); }
  Result<void> send(int to, std::span<const std::byte> bytes) override {
    return network_.send(rank_, to, bytes);
  }
  Result<void> receive(int from, std::span<std::byte> into) override {
    return network_.receive(rank_, from, into);
  }
  void close() override { network_.close(rank_); }

 private:
  LocalNetwork& network_;
  const int rank_;
};

LocalNetwork::LocalNetwork(int ranks, const LocalNetworkOptions& options)
    : options_(options),
      ranks_(static_cast<size_t>(ranks)),
      links_(static_cast<size_t>(ranks) * static_cast<size_t>(ranks)) {
  for (int i = 0; i < ranks; ++i) at(i).end = std::make_unique<End>(*this, i);
}

LocalNetwork::~LocalNetwork() = default;

Transport& LocalNetwork::of(int rank) { return *at(rank).end; }

std::optional<Error> LocalNetwork::failure(int rank, int peer) const {
  if (at(rank).closed) return Error{Code::io, "the connection was closed here"};
  if (at(rank).dead) return Error{Code::io, "this rank is dead"};
  if (at(peer).dead) return Error{Code::io, "connection reset by peer"};
  return std::nullopt;
}

void LocalNetwork::dawdle() {
  if (options_.most_delay_us == 0) return;
  uint64_t call = 0;
  {
    std::lock_guard lock(mutex_);
    call = ++calls_;
  }
  const uint64_t dice = (options_.seed + call) * 0x9E3779B97F4A7C15ull >> 20;
  if (dice % 4 != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(dice / 4 % options_.most_delay_us));
}

// With the lock held.
void LocalNetwork::count_send(int rank) {
  const auto due = [](std::optional<uint64_t>& after) {
    if (!after) return false;
    if (*after > 0) {
      --*after;
      return false;
    }
    after.reset();
    return true;
  };
  if (due(at(rank).dies_after)) at(rank).dead = true;
  if (due(at(rank).stops_after)) at(rank).stopped = true;
  changed_.notify_all();
}

Result<void> LocalNetwork::send(int from, int to, std::span<const std::byte> bytes) {
  dawdle();
  std::unique_lock lock(mutex_);
  count_send(from);
  Link& link = this->link(from, to);
  if (link.state != State::free) ADD_FAILURE() << "two sends at once to rank " << to;
  for (;;) {
    // What is being copied is not given up, and what was taken was sent.
    if (link.state != State::copying && link.state != State::taken) {
      if (std::optional<Error> failed = failure(from, to)) {
        link.state = State::free;
        return std::move(*failed);
      }
    }
    if (link.state == State::taken) {
      link.state = State::free;
      link.taken_bytes += bytes.size();
      return {};
    }
    if (link.state == State::free && !at(from).stopped) {
      link.state = State::posted;
      link.bytes = bytes;
      changed_.notify_all();
    }
    const bool hangs = at(from).stopped || at(to).stopped;
    hanging_sends_ += hangs;
    if (hangs) send_hangs_.notify_all();
    changed_.wait(lock);
    hanging_sends_ -= hangs;
  }
}

Result<void> LocalNetwork::receive(int to, int from, std::span<std::byte> into) {
  dawdle();
  std::unique_lock lock(mutex_);
  Link& link = this->link(from, to);
  for (;;) {
    if (std::optional<Error> failed = failure(to, from)) return std::move(*failed);
    if (link.state == State::posted && !at(to).stopped) break;
    changed_.wait(lock);
  }
  if (link.bytes.size() != into.size()) {
    ADD_FAILURE() << "rank " << from << " sends " << link.bytes.size() << " bytes, rank " << to
                  << " receives " << into.size();
    return Error{Code::io, "the sizes are not equal"};
  }
  link.state = State::copying;
  lock.unlock();  // so that a race of its users with the copy is one for a sanitizer, too
  if (!into.empty()) std::memcpy(into.data(), link.bytes.data(), into.size());
  lock.lock();
  link.state = State::taken;
  changed_.notify_all();
  return {};
}

void LocalNetwork::close(int rank) {
  std::lock_guard lock(mutex_);
  at(rank).closed = true;
  changed_.notify_all();
}

void LocalNetwork::kill(int rank) {
  std::lock_guard lock(mutex_);
  at(rank).dead = true;
  changed_.notify_all();
}

void LocalNetwork::stop(int rank) {
  std::lock_guard lock(mutex_);
  at(rank).stopped = true;
  changed_.notify_all();
}

void LocalNetwork::kill_after(int rank, uint64_t sends) {
  std::lock_guard lock(mutex_);
  at(rank).dies_after = sends;
}

void LocalNetwork::stop_after(int rank, uint64_t sends) {
  std::lock_guard lock(mutex_);
  at(rank).stops_after = sends;
}

bool LocalNetwork::killed(int rank) const {
  std::lock_guard lock(mutex_);
  return at(rank).dead;
}

bool LocalNetwork::stopped(int rank) const {
  std::lock_guard lock(mutex_);
  return at(rank).stopped;
}

void LocalNetwork::wait_until_a_send_hangs() {
  std::unique_lock lock(mutex_);
  send_hangs_.wait(lock, [&] { return hanging_sends_ > 0; });
}

Bytes LocalNetwork::sent_bytes(int from) const {
  std::lock_guard lock(mutex_);
  Bytes sum = 0;
  for (int to = 0; to < ranks(); ++to)
    sum += links_[static_cast<size_t>(from * ranks() + to)].taken_bytes;
  return sum;
}

Bytes LocalNetwork::received_bytes(int to) const {
  std::lock_guard lock(mutex_);
  Bytes sum = 0;
  for (int from = 0; from < ranks(); ++from)
    sum += links_[static_cast<size_t>(from * ranks() + to)].taken_bytes;
  return sum;
}

}  // namespace bottomless
