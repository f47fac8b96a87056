#include "train/setup/ranks.h"

#include <bottomless/shard.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "os/started_rank.h"
#include "ranks/meeting.h"
#include "torch/shard/c10d_transport.h"
#include "torch/errors.h"
#include "torch/runtime/process.h"

namespace bottomless::train {

struct Ranks::Connection {
  explicit Connection(c10::intrusive_ptr<c10d::Backend> backend) : transport(std::move(backend)) {}
  ~Connection() {
    meeting.reset();
    if (session) (*session)->engine().discharge(charged);
  }

  C10dTransport transport;
  std::unique_ptr<Meeting> meeting;
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
  Result<std::unique_ptr<Meeting>> meeting = Meeting::start(
      ranks.connection_->transport,
      {.purpose = "train on " + std::to_string(ranks.count_) + " ranks", .deadline = deadline});
  if (!meeting.ok()) return meeting.error();
  ranks.connection_->meeting = std::move(meeting).value();
  return ranks;
}

c10::intrusive_ptr<c10d::Backend> Ranks::connect() const { return join_ranks(deadline_); }

Result<void> Ranks::charge_to_limit() {
  if (connection_ == nullptr) return {};
  SessionUse session = Process::get().sessions().use_current();
  if (!session) return {};
  const Bytes own = Meeting::own_memory(count_);
  if (Result<void> charged = session->engine().charge(own, nullptr, "speaking with other ranks");
      !charged.ok())
    return charged;
  connection_->charged = own;
  connection_->session.emplace(std::move(session));
  return {};
}

void Ranks::is_at(const std::string& what) {
  if (connection_ != nullptr) connection_->meeting->is_at(what);
}

void Ranks::goes_on() {
  if (connection_ != nullptr) connection_->meeting->goes_on();
}

// What each says, by rank.
std::vector<std::vector<std::byte>> Ranks::gather(std::span<const std::byte> own) {
  if (connection_ == nullptr) return {{own.begin(), own.end()}};
  Result<std::vector<std::vector<std::byte>>> heard = connection_->meeting->meet(own);
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

std::vector<std::string> Ranks::all_say(const std::string& text) {
  std::vector<std::string> said;
  for (const std::vector<std::byte>& bytes : gather(std::as_bytes(std::span(text))))
    said.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return said;
}

Result<void> Ranks::agree(const Result<void>& here) {
  const std::vector<std::string> said = all_say(here.ok() ? "" : here.error().message);
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].empty()) continue;
    const Code code = here.ok() ? Code::io : here.error().code;
    return Error{code, rank == 0 ? said[rank] : "rank " + std::to_string(rank) + ": " + said[rank]};
  }
  return here;
}

}  // namespace bottomless::train
