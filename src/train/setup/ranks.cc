#include "train/setup/ranks.h"

#include <bottomless/shard.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "os/started_rank.h"
#include "ranks/rendezvous.h"
#include "torch/errors.h"
#include "torch/runtime/process.h"
#include "torch/shard/c10d_transport.h"

namespace bottomless::train {

struct Ranks::Connection {
  explicit Connection(c10::intrusive_ptr<c10d::Backend> backend) : transport(std::move(backend)) {}
  ~Connection() {
    rendezvous.reset();
    if (session) (*session)->engine().discharge(charged);
  }

  C10dTransport transport;
  std::unique_ptr<Rendezvous> rendezvous;
  std::optional<SessionUse> session;  // that is charged
  Bytes charged = 0;
};

Ranks::Ranks() = default;
Ranks::Ranks(Ranks&& other) noexcept = default;
Ranks& Ranks::operator=(Ranks&& other) noexcept = default;
Ranks::~Ranks() = default;

Result<Ranks> Ranks::join(std::chrono::seconds deadline) {
  const Result<std::optional<StartedRank>> started = started_rank();
  if (!started.ok()) return started.error();
  Ranks ranks;
  if (!started.value() || started.value()->ranks == 1) return ranks;
  ranks.rank_ = started.value()->rank;
  ranks.count_ = started.value()->ranks;
  ranks.deadline_ = deadline;
  ranks.connection_ = std::make_unique<Connection>(ranks.connect());
  Result<std::unique_ptr<Rendezvous>> rendezvous = Rendezvous::start(
      ranks.connection_->transport,
      {.purpose = "train on " + std::to_string(ranks.count_) + " ranks", .deadline = deadline});
  if (!rendezvous.ok()) return rendezvous.error();
  ranks.connection_->rendezvous = std::move(rendezvous).value();
  return ranks;
}

c10::intrusive_ptr<c10d::Backend> Ranks::connect() const { return join_ranks(deadline_); }

Result<void> Ranks::charge_to_limit() {
  if (connection_ == nullptr) return {};
  SessionUse session = Process::get().sessions().use_current();
  if (!session) return {};
  const Bytes own = Rendezvous::own_memory(count_);
  if (Result<void> charged = session->engine().charge(own, nullptr, "speaking with other ranks");
      !charged.ok())
    return charged;
  connection_->charged = own;
  connection_->session.emplace(std::move(session));
  return {};
}

void Ranks::set_phase(const std::string& what) {
  if (connection_ != nullptr) connection_->rendezvous->set_phase(what);
}

void Ranks::heartbeat() {
  if (connection_ != nullptr) connection_->rendezvous->heartbeat();
}

// What each says, by rank.
std::vector<std::vector<std::byte>> Ranks::gather(std::span<const std::byte> own) {
  if (connection_ == nullptr) return {{own.begin(), own.end()}};
  Result<std::vector<std::vector<std::byte>>> heard = connection_->rendezvous->meet(own);
  if (!heard.ok()) throw_error(heard.error());
  return std::move(heard).value();
}

std::vector<double> Ranks::sum(const std::vector<double>& values) {
  std::vector<double> sums(values.size(), 0);
  std::vector<double> theirs(values.size());
  for (const std::vector<std::byte>& said : gather(std::as_bytes(std::span(values)))) {
    std::memcpy(theirs.data(), said.data(), std::min(said.size(), values.size() * sizeof(double)));
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += theirs[i];
  }
  return sums;
}

bool Ranks::any(bool here) { return sum({here ? 1.0 : 0.0}).front() > 0; }

std::vector<std::string> Ranks::all_gather(const std::string& text) {
  std::vector<std::string> said;
  for (const std::vector<std::byte>& bytes : gather(std::as_bytes(std::span(text))))
    said.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return said;
}

Result<void> Ranks::agree(const Result<void>& here) {
  const std::vector<std::string> said = all_gather(here.ok() ? "" : here.error().message);
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    const Code code = here.ok() ? Code::io : here.error().code;
    return Error{code, rank == 0 ? said[rank] : "rank " + std::to_string(rank) + ": " + said[rank]};
  }
  return here;
}

}  // namespace bottomless::train
