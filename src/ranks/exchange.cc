// Asking, waiting, and an end to both; answering is in serving.cc.
#include "ranks/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace bottomless {
namespace {

constexpr std::chrono::nanoseconds kLongestFarewell = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kLongestStatus = std::chrono::seconds(3);

std::string words(std::chrono::nanoseconds time) {
  using std::chrono::duration_cast;
  if (time < std::chrono::seconds(10))
    return std::to_string(duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
  return std::to_string(duration_cast<std::chrono::seconds>(time).count()) + " s";
}

// More than there are threads that hold one. Ranks ask for the same at about the same time, but not at the same moment: whoever
// comes a few pieces later finds them still here, and the disk reads them once.
size_t pieces_for(int ranks) { return std::max<size_t>(static_cast<size_t>(ranks) + 2, 12); }

}  // namespace

Bytes Exchange::own_memory(int ranks, Bytes piece_bytes) {
  const auto peers = static_cast<Bytes>(ranks - 1);
  const Bytes encoded = encoded_bytes(piece_bytes, Element::bfloat16);
  // A cache of pieces; for each peer three threads and what is quantised on its way in and out; one that answers this rank
  // itself; a watchdog.
  return pieces_for(ranks) * Engine::bypass_buffer_bytes(piece_bytes) +
         peers * (3 * Thread::kStackBytes + 2 * encoded) + Thread::kStackBytes + encoded +
         Thread::kStackBytes;
}

Exchange::Exchange(Transport& transport, ExchangeOptions options)
    : transport_(transport),
      options_(std::move(options)),
      clock_(*options_.clock),
      node_(node_of(transport.rank(), transport.ranks(), options_.ranks_per_node)),
      pieces_(options_.piece_bytes) {
  for (int i = 0; i < ranks(); ++i) peers_.push_back(std::make_unique<Peer>());
}

Result<std::unique_ptr<Exchange>> Exchange::start(Transport& transport, ExchangeOptions options) {
  BOTTOMLESS_CHECK(options.piece_bytes > 0 && options.piece_bytes % Store::kAlignment == 0,
                   "pieces are read from the store, page by page");
  BOTTOMLESS_CHECK(options.piece_bytes <= kMostData, "no rank takes so much at once");
  std::unique_ptr<Exchange> exchange(new Exchange(transport, std::move(options)));
  if (Result<void> reserved = exchange->pieces_.reserve(pieces_for(transport.ranks()));
      !reserved.ok())
    return std::move(reserved).error();
  if (Result<void> started = exchange->start_threads(); !started.ok())
    return std::move(started).error();
  return exchange;
}

Result<void> Exchange::start_threads() {
  const auto start = [](Thread& thread, const std::string& name, std::function<void()> body) {
    Result<Thread> started = Thread::start(name, std::move(body));
    if (!started.ok()) return Result<void>(std::move(started).error());
    thread = std::move(started).value();
    return Result<void>();
  };
  Result<void> started = start(watchdog_, "bl-deadlines", [this] { watch_deadlines(); });
  for (int i = 0; i < ranks() && started.ok(); ++i) {
    const std::string name = "bl-rank" + std::to_string(i);
    started = start(peer(i).server, name + "-give", [this, i] { serve(i); });
    if (i == rank()) continue;
    if (started.ok())
      started = start(peer(i).receiver, name + "-in", [this, i] { receive_from(i); });
    if (!started.ok()) break;
    {
      MutexLock lock(mutex_);
      peer(i).sender_ended = false;
    }
    started = start(peer(i).sender, name + "-out", [this, i] { send_loop(i); });
    if (started.ok()) continue;
    MutexLock lock(mutex_);
    peer(i).sender_ended = true;
  }
  return started;
}

Exchange::~Exchange() {
  close();
  {
    MutexLock lock(mutex_);
    ended_ = true;
    watch_.notify_all();
  }
  watchdog_.join();
  for (int i = 0; i < ranks(); ++i) give_up_on(i, {});  // what was asked since
}

// In a network where a send ends when it is taken, nobody may stop to receive while the other sends. So a shutdown is
// answered with one, by threads, and the network is closed when both have been said.
void Exchange::close(Shutdown shutdown) {
  {
    MutexLock lock(mutex_);
    if (std::exchange(closing_, true)) return;
    wake_all();
    watch_.notify_all();
  }
  for (auto& peer : peers_) peer->server.join();  // they end after what they are sending
  {
    MutexLock lock(mutex_);
    served_ = true;
    aborted_ = shutdown == Shutdown::abort;
    wake_all();
    const auto until = aborted_ ? clock_.now() : clock_.now() + timeout();
    while (!all_parted() && clock_.now() < until)
      clock_.wait(changed_, mutex_, std::chrono::milliseconds(50));
  }
  transport_.close();
  for (auto& peer : peers_) peer->sender.join();
  for (auto& peer : peers_) peer->receiver.join();
  for (int i = 0; i < ranks(); ++i) give_up_on(i, {Code::io, "has been left"});
}

bool Exchange::all_parted() const {
  for (int i = 0; i < ranks(); ++i) {
    if (i != rank() && !(peer(i).gone && peer(i).sender_ended)) return false;
  }
  return true;
}

Error Exchange::lost(int peer, const std::string& what) const {
  const std::string phase = options_.phase();  // may take locks of its own
  MutexLock lock(mutex_);
  std::string text = what + ": ";
  if (broken_by_) {
    text += "rank " + std::to_string(*broken_by_) + " did not move for " +
            words(options_.deadline) + " (the deadline)";
  } else if (closing_) {
    text += "this rank has left the others";
  } else {
    const std::optional<Error>& gone = this->peer(peer).gone;
    text += "rank " + std::to_string(peer) + ' ' + (gone ? gone->message : "cannot be reached");
  }
  return {Code::io, text + "; rank " + std::to_string(rank()) + " was at: " + phase};
}

void Exchange::wake_all() {
  changed_.notify_all();
  for (const auto& peer : peers_) {
    peer->to_send.notify_one();
    peer->to_answer.notify_one();
  }
}

// Every pull that it owes an answer fails, and all who wait hear of it.
void Exchange::give_up_on(int peer, const Error& why) {
  std::vector<std::pair<uint64_t, std::string>> owed;
  {
    MutexLock lock(mutex_);
    Peer& lost = this->peer(peer);
    if (!lost.gone) lost.gone = why;
    for (const auto& [id, pending] : pending_) {
      if (pending.pull.from == peer) owed.emplace_back(id, pending.pull.what);
    }
    wake_all();
  }
  for (const auto& [id, what] : owed) finish(id, lost(peer, what));
}

void Exchange::finish(uint64_t id, Result<void> outcome) {
  std::optional<Pending> pending;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end()) return;
    if (found->second.arriving) {
      if (!outcome.ok() && !found->second.failure)
        found->second.failure = std::move(outcome).error();
      return;
    }
    pending = std::move(found->second);
    pending_.erase(found);
  }
  pending->pull.done(std::move(outcome));
  nudge();
}

// Because of what the other rank says.
void Exchange::fail(uint64_t id, int from, const Error& why) {
  std::string what;
  {
    MutexLock lock(mutex_);
    const auto found = pending_.find(id);
    if (found == pending_.end() || found->second.pull.from != from) return;
    what = found->second.pull.what;
  }
  finish(id, Error{why.code, what + ": rank " + std::to_string(from) + ": " + why.message});
}

uint64_t Exchange::pull(Pull pull) {
  const int from = pull.from;
  const Bytes element = element_bytes(pull.element);
  BOTTOMLESS_CHECK(pull.format == Format::plain ||
                       (pull.element != Element::bytes && pull.offset % element == 0 &&
                        pull.into.size() % element == 0),
                   "only whole numbers can be quantised");
  Message message{
      .kind = MessageKind::pull,
      .format = static_cast<uint32_t>(pull.format) << 8 | static_cast<uint32_t>(pull.element),
      .key = pull.key,
      .version = pull.version,
      .offset = pull.offset,
      .bytes = pull.into.size(),
      .demanded = pull.priority == Priority::demand};
  MutexLock lock(mutex_);
  message.id = next_id_++;
  pending_.emplace(message.id, Pending{.pull = std::move(pull), .since = clock_.now()});
  Peer& peer = this->peer(from);
  // A thread does the sending: a caller must not wait for the network.
  (from == rank() ? peer.asked : peer.outbox).push_back(message);
  (from == rank() ? peer.to_answer : peer.to_send).notify_one();
  if (peer.gone) watch_.notify_all();  // and the watchdog sees that it is in vain
  return message.id;
}

void Exchange::raise_priority(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = pending_.find(id);
  if (found == pending_.end()) return;
  if (std::exchange(found->second.pull.priority, Priority::demand) == Priority::demand) return;
  const int from = found->second.pull.from;
  Peer& peer = this->peer(from);
  for (Message& message : from == rank() ? peer.asked : peer.outbox) {
    if (message.kind != MessageKind::pull || message.id != id) continue;
    message.demanded = 1;
    return;
  }
  if (from == rank()) return;
  peer.outbox.push_back({.kind = MessageKind::raise_priority, .id = id, .demanded = 1});
  peer.to_send.notify_one();
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
  BOTTOMLESS_CHECK(to != rank(), "a rank tells itself nothing");
  const Result<void> told = deliver(to,
                                    {.kind = MessageKind::notice,
                                     .key = notice.what,
                                     .version = notice.first,
                                     .offset = notice.second},
                                    {});
  if (told.ok()) return {};
  return lost(to, "tell rank " + std::to_string(to) + " how far this one is");
}

Result<void> Exchange::tell_all(const Notice& notice) {
  for (int i = 0; i < ranks(); ++i) {
    if (i == rank()) continue;
    if (Result<void> told = tell(i, notice); !told.ok()) return told;
  }
  return {};
}

void Exchange::nudge() {
  MutexLock lock(mutex_);
  changed_.notify_all();
}

Result<void> Exchange::wait(const std::string& what, const std::function<bool()>& ready,
                            const std::function<int()>& late, Timeout timeout) {
  const auto since = clock_.now();
  for (;;) {
    if (ready()) return {};
    const int who = late();
    const bool other = who >= 0 && who != rank();
    std::optional<int> gone;
    bool left = false;
    {
      MutexLock lock(mutex_);
      for (int i = 0; i < ranks() && !gone; ++i) {
        if (peer(i).gone && !peer(i).left) gone = i;
      }
      if (closing_) gone = rank();
      left = other && peer(who).left;
      const bool late_yet = clock_.now() - since >= options_.deadline;
      if (!gone && !left && (!late_yet || timeout == Timeout::none)) {
        // What ready() asks about may have changed before the lock was taken: look again soon.
        clock_.wait(changed_, mutex_, std::chrono::milliseconds(20));
        continue;
      }
    }
    if (gone) return lost(*gone, what);
    if (left) {
      if (ready()) return {};  // its last notice may have come just before it left
      if (late() == who) return lost(who, what);
      continue;
    }
    const std::string status = other ? ask_status(who) : "this rank itself";
    return Error{Code::io, what + ": nothing from rank " + std::to_string(who) + " for " +
                               words(options_.deadline) + " (the deadline); it is at: " + status +
                               "; rank " + std::to_string(rank()) + " is at: " + options_.phase()};
  }
}

std::string Exchange::ask_status(int of) {
  const auto until = clock_.now() + std::min(options_.deadline, kLongestStatus);
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  statuses_[id];
  peer(of).outbox.push_front({.kind = MessageKind::ask_status, .id = id, .demanded = 1});
  peer(of).to_send.notify_one();
  while (!statuses_.at(id) && !peer(of).gone && !closing_ && clock_.now() < until)
    clock_.wait(changed_, mutex_, std::chrono::milliseconds(50));
  const std::optional<std::string> status = std::move(statuses_.at(id));
  statuses_.erase(id);
  return status.value_or("(it does not answer at all)");
}

std::chrono::nanoseconds Exchange::timeout() const {
  return closing_ ? std::min(options_.deadline, kLongestFarewell) : options_.deadline;
}

// The memory of a transfer cannot be given up before the network has, and the network cannot give up one peer alone.
void Exchange::break_off(int because_of) {
  {
    MutexLock lock(mutex_);
    if (!broken_by_) broken_by_ = because_of;
  }
  transport_.close();
}

// Waits for nobody for long: whatever else hangs, this ends it.
void Exchange::watch_deadlines() {
  for (;;) {
    std::vector<Late> late;
    std::vector<int> in_vain;
    std::optional<int> stuck;
    {
      MutexLock lock(mutex_);
      if (ended_) return;
      const auto now = clock_.now();
      for (const auto& [id, pending] : pending_) {
        const int from = pending.pull.from;
        const bool too_long = now - pending.since >= options_.deadline;
        if (too_long && pending.arriving && from != rank()) stuck = from;
        if (pending.failure) continue;
        if (peer(from).gone) {
          in_vain.push_back(from);
        } else if (too_long) {
          late.push_back({id, from});
        }
      }
      for (int i = 0; i < ranks(); ++i) {
        if (const auto& since = peer(i).sending_since; since && now - *since >= timeout())
          stuck = i;
      }
      if (broken_by_) stuck.reset();  // that has been done
      if (late.empty() && in_vain.empty() && !stuck) {
        clock_.wait(watch_, mutex_,
                    std::min<std::chrono::nanoseconds>(timeout() / 4, std::chrono::seconds(1)));
        continue;
      }
    }
    std::sort(in_vain.begin(), in_vain.end());
    in_vain.erase(std::unique(in_vain.begin(), in_vain.end()), in_vain.end());
    for (const int from : in_vain) give_up_on(from, {});
    report_late(late);
    if (stuck) break_off(*stuck);
  }
}

void Exchange::report_late(const std::vector<Late>& late) {
  std::map<int, std::string> statuses;  // each is asked once, however much it owes
  for (const auto& [id, from] : late) {
    if (from != rank() && !statuses.contains(from)) statuses[from] = ask_status(from);
    std::string what;
    {
      MutexLock lock(mutex_);
      const auto found = pending_.find(id);
      // It may have moved while the other rank was asked.
      if (found == pending_.end() || clock_.now() - found->second.since < options_.deadline)
        continue;
      what = found->second.pull.what;
    }
    const std::string phase = options_.phase();
    finish(id, Error{Code::io, what + ": no answer from rank " + std::to_string(from) + " for " +
                                   words(options_.deadline) + " (the deadline); it is at: " +
                                   (from == rank() ? phase : statuses[from]) + "; rank " +
                                   std::to_string(rank()) + " is at: " + phase});
  }
}

ExchangeStats Exchange::stats() const {
  MutexLock lock(mutex_);
  return stats_;
}

}  // namespace bottomless
