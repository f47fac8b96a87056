// Asking and waiting; answering is in serving.cc.
#include "ranks/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace bottomless {
namespace {

std::string seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(time).count()) + " s";
}

size_t pieces_for(int ranks) { return static_cast<size_t>(ranks) + 2; }

}  // namespace

Bytes Exchange::own_memory(int ranks, Bytes piece_bytes) {
  const auto peers = static_cast<Bytes>(ranks - 1);
  // A cache of pieces; for each peer two threads and what is quantised on its way in and out; a watchdog.
  return pieces_for(ranks) * Engine::copied_out_room(piece_bytes) +
         peers * (2 * Thread::kStackBytes + 2 * encoded_bytes(piece_bytes, Element::bfloat16)) +
         Thread::kStackBytes;
}

Exchange::Exchange(Transport& transport, ExchangeOptions options)
    : transport_(transport),
      options_(std::move(options)),
      pieces_(pieces_for(transport.ranks()), options_.piece_bytes) {
  for (int i = 0; i < ranks(); ++i) peers_.push_back(std::make_unique<Peer>());
}

Result<std::unique_ptr<Exchange>> Exchange::start(Transport& transport, ExchangeOptions options) {
  std::unique_ptr<Exchange> exchange(new Exchange(transport, std::move(options)));
  if (Result<void> started = exchange->start_threads(); !started.ok())
    return std::move(started).error();
  return exchange;
}

Result<void> Exchange::start_threads() {
  for (int i = 0; i < ranks(); ++i) {
    Peer& peer = *peers_[static_cast<size_t>(i)];
    const std::string name = "bl-rank" + std::to_string(i);
    Result<Thread> server = Thread::start(name + "-out", [this, i] { serve(i); });
    if (!server.ok()) return std::move(server).error();
    peer.server = std::move(server).value();
    if (i == rank()) continue;
    Result<Thread> receiver = Thread::start(name + "-in", [this, i] { receive_from(i); });
    if (!receiver.ok()) return std::move(receiver).error();
    peer.receiver = std::move(receiver).value();
  }
  Result<Thread> watchdog = Thread::start("bl-deadlines", [this] { watch_deadlines(); });
  if (!watchdog.ok()) return std::move(watchdog).error();
  watchdog_ = std::move(watchdog).value();
  return {};
}

Exchange::~Exchange() { close(); }

void Exchange::close(Farewell farewell) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closing_, true)) return;
    changed_.notify_all();
  }
  for (auto& peer : peers_) peer->server.join();  // they end after what they are sending
  for (int i = 0; i < ranks(); ++i) {
    if (i == rank() || farewell == Farewell::unsaid) continue;
    (void)deliver(i, {.kind = MessageKind::farewell}, {});  // whoever is gone needs none
  }
  if (farewell == Farewell::said) await_farewells();
  transport_.close();
  for (auto& peer : peers_) peer->receiver.join();
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  watchdog_.join();
  for (int i = 0; i < ranks(); ++i) give_up_on(i, {Code::io, "this rank has left the others"});
}

// A peer's farewell finds nobody who takes it once the transport is closed, and the peer would wait for that.
void Exchange::await_farewells() {
  const auto until = std::chrono::steady_clock::now() +
                     std::min<std::chrono::nanoseconds>(options_.deadline, std::chrono::seconds(5));
  MutexLock lock(mutex_);
  const auto is_here = [this](int i) BOTTOMLESS_REQUIRES(mutex_) {
    return i != rank() && !peers_[static_cast<size_t>(i)]->gone;
  };
  for (int i = 0; i < ranks(); ++i) {
    while (is_here(i) && std::chrono::steady_clock::now() < until)
      changed_.wait_for(mutex_, std::chrono::milliseconds(50));
  }
}

Error Exchange::lost(int peer, const std::string& what) const {
  const Peer& gone = *peers_[static_cast<size_t>(peer)];
  return {Code::io, what + ": rank " + std::to_string(peer) + ' ' +
                        (gone.gone ? gone.gone->message : "has left") + "; rank " +
                        std::to_string(rank()) + " was at: " + options_.doing()};
}

// Every pull that it owes an answer fails, and all who wait hear of it.
void Exchange::give_up_on(int peer, Error why) {
  std::vector<uint64_t> owed;
  {
    MutexLock lock(mutex_);
    Peer& lost = *peers_[static_cast<size_t>(peer)];
    if (!lost.gone) lost.gone = std::move(why);
    for (const auto& [id, pending] : pending_) {
      if (pending.pull.from == peer) owed.push_back(id);
    }
  }
  for (const uint64_t id : owed) {
    std::optional<Error> error;
    {
      MutexLock lock(mutex_);
      const auto found = pending_.find(id);
      if (found != pending_.end()) error = lost(peer, found->second.pull.what);
    }
    if (error) finish(id, std::move(*error));
  }
  nudge();
}

void Exchange::finish(uint64_t id, Result<void> outcome) {
  std::optional<Pending> pending;
  {
    MutexLock lock(mutex_);
    auto found = pending_.find(id);
    while (found != pending_.end() && found->second.arriving) {
      changed_.wait(mutex_);
      found = pending_.find(id);
    }
    if (found == pending_.end()) return;
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending->pull.done(std::move(outcome));
  nudge();
}

uint64_t Exchange::pull(Pull pull) {
  const int from = pull.from;
  Message message{
      .kind = MessageKind::pull,
      .format = static_cast<uint32_t>(pull.format) << 8 | static_cast<uint32_t>(pull.element),
      .key = pull.key,
      .version = pull.version,
      .offset = pull.offset,
      .bytes = pull.into.size(),
      .urgent = pull.urgency == Urgency::now,
      .incoming = from == rank()};
  MutexLock lock(mutex_);
  message.id = next_id_++;
  pending_.emplace(message.id,
                   Pending{std::move(pull), 0, false, std::chrono::steady_clock::now()});
  // The server of this peer does the sending: a caller must not wait for the network.
  peers_[static_cast<size_t>(from)]->asked.push_back(message);
  changed_.notify_all();
  return message.id;
}

void Exchange::hurry(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  const int from = found->second.pull.from;
  auto& asked = peers_[static_cast<size_t>(from)]->asked;
  for (Message& message : asked) {
    if (message.kind == MessageKind::pull && message.id == id &&
        message.incoming == (from == rank()))
      message.urgent = 1;
  }
  if (from != rank()) asked.push_back({.kind = MessageKind::hurry, .id = id, .urgent = 1});
  changed_.notify_all();
}

Result<void> Exchange::pull_now(Pull pull) {
  struct Answer {
    std::optional<Result<void>> outcome;
  };
  auto answer = std::make_shared<Answer>();
  pull.done = [this, answer](Result<void> outcome) {
    MutexLock lock(mutex_);
    answer->outcome = std::move(outcome);
  };
  (void)this->pull(std::move(pull));
  MutexLock lock(mutex_);
  while (!answer->outcome) changed_.wait(mutex_);  // the watchdog sees to it that there is one
  return std::move(*answer->outcome);
}

Result<void> Exchange::tell(int to, const Notice& notice) {
  return deliver(to,
                 {.kind = MessageKind::notice,
                  .key = notice.what,
                  .version = notice.first,
                  .offset = notice.second},
                 {});
}

Result<void> Exchange::tell_all(const Notice& notice) {
  for (int i = 0; i < ranks(); ++i) {
    if (i == rank()) continue;
    if (Result<void> told = tell(i, notice); !told.ok()) {
      MutexLock lock(mutex_);
      return lost(i, "tell the other ranks");
    }
  }
  return {};
}

void Exchange::nudge() {
  MutexLock lock(mutex_);
  changed_.notify_all();
}

Result<void> Exchange::wait(const std::string& what, const std::function<bool()>& ready,
                            const std::function<int()>& late, Patience patience) {
  const auto since = std::chrono::steady_clock::now();
  for (;;) {
    if (ready()) return {};
    const int who = late();
    {
      MutexLock lock(mutex_);
      for (int i = 0; i < ranks(); ++i) {
        const Peer& peer = *peers_[static_cast<size_t>(i)];
        if (peer.gone && !peer.left) return lost(i, what);
      }
      if (closing_) return Error{Code::io, what + ": this rank has left the others"};
      if (patience == Patience::endless ||
          std::chrono::steady_clock::now() - since < options_.deadline) {
        // What ready() asks about may have changed before the lock was taken: look again soon.
        changed_.wait_for(mutex_, std::chrono::milliseconds(20));
        continue;
      }
    }
    std::string status = who < 0 || who == rank() ? "this rank itself" : ask_status(who);
    return Error{Code::io, what + ": nothing from rank " + std::to_string(who) + " for " +
                               seconds(options_.deadline) + " (the deadline); it is at: " + status +
                               "; rank " + std::to_string(rank()) + " is at: " + options_.doing()};
  }
}

std::string Exchange::ask_status(int of) {
  uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    id = next_id_++;
    peers_[static_cast<size_t>(of)]->asked.push_front(
        {.kind = MessageKind::ask_status, .id = id, .urgent = 1});
    changed_.notify_all();
  }
  const auto until = std::chrono::steady_clock::now() +
                     std::min<std::chrono::nanoseconds>(options_.deadline, std::chrono::seconds(3));
  MutexLock lock(mutex_);
  while (!statuses_.contains(id) && std::chrono::steady_clock::now() < until)
    changed_.wait_for(mutex_, std::chrono::milliseconds(50));
  const auto found = statuses_.find(id);
  return found == statuses_.end() ? "(it does not answer at all)" : found->second;
}

void Exchange::watch_deadlines() {
  for (;;) {
    std::vector<std::pair<uint64_t, int>> late;
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      const auto now = std::chrono::steady_clock::now();
      for (const auto& [id, pending] : pending_) {
        const int from = pending.pull.from;
        const bool in_vain = peers_[static_cast<size_t>(from)]->gone.has_value();
        if (now - pending.since < options_.deadline && !in_vain) continue;
        late.emplace_back(id, from);
        // In the middle of a piece its memory cannot be given up before the network has.
        if (pending.arriving) transport_.close();
      }
      if (late.empty()) {
        changed_.wait_for(mutex_, std::min<std::chrono::nanoseconds>(options_.deadline / 4,
                                                                     std::chrono::seconds(1)));
        continue;
      }
    }
    for (const auto& [id, from] : late) {
      std::string what;
      bool gone = false;
      {
        MutexLock lock(mutex_);
        const auto found = pending_.find(id);
        if (found == pending_.end()) continue;
        what = found->second.pull.what;
        gone = peers_[static_cast<size_t>(from)]->gone.has_value();
      }
      if (gone) {
        give_up_on(from, {});
        continue;
      }
      const std::string status = from == rank() ? options_.doing() : ask_status(from);
      finish(id, Error{Code::io, what + ": no answer from rank " + std::to_string(from) + " for " +
                                     seconds(options_.deadline) +
                                     " (the deadline); it is at: " + status + "; rank " +
                                     std::to_string(rank()) + " is at: " + options_.doing()});
    }
  }
}

ExchangeStats Exchange::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace bottomless
