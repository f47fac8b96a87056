// Ranks that give each other what they ask for. A rank offers pieces of its memory under keys; another pulls any range of
// them whenever it likes, and is answered by threads of the offering rank, whatever its program is doing at the time. So
// nobody has to call anything in step with anybody: ranks that take different branches do not wait for each other.
// Besides, small notices go from rank to rank, in order. Whoever waits does so with a deadline, and learns who is late.
// Thread-safety: every call from any thread; callbacks come from threads of the exchange and must not wait.
// Lifetime: the transport, and engines whose memory is offered, outlive it. The destructor closes.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "io/priority.h"
#include "ranks/layout.h"
#include "ranks/message.h"
#include "ranks/network_format.h"
#include "ranks/piece_cache.h"
#include "ranks/transport.h"

namespace bottomless {

struct Notice {
  uint64_t what = 0;
  uint64_t first = 0;
  uint64_t second = 0;
};

// What a rank lets others have.
struct Offered {
  Engine* engine = nullptr;            // null: the memory is not an engine's, and stays where it is
  const std::byte* address = nullptr;  // an engine's: the begin of a storage
  Bytes first = 0;                     // where in what is sharded it begins
  Bytes bytes = 0;
  Element element = Element::bytes;  // for those who want it quantised
  int askers = 1;                    // ranks that will ask for each part of it
};

struct ExchangeOptions {
  std::chrono::nanoseconds deadline = std::chrono::minutes(10);  // of every wait
  Bytes piece_bytes = Bytes{4} << 20;  // of memory that one answer is made in; a multiple of 4 KiB
  int ranks_per_node = 0;              // for stats: so many consecutive ones; 0: all are one node
  std::function<void(int from, const Notice&)> on_notice = [](int, const Notice&) {};
  std::function<void()> serving = [] {};  // called first by the threads that answer
  std::function<std::string()> phase = [] { return std::string(); };  // for others who wonder
  const Clock* clock = &Clock::steady();                              // of the deadline
};

struct ExchangeStats {
  Bytes sent_bytes = 0;  // payload, as it crossed the network
  Bytes received_bytes = 0;
  Bytes received_across_bytes = 0;            // of these, from other nodes
  std::map<uint8_t, Bytes> received_by_role;  // the top byte of a key
  std::map<uint8_t, Bytes> received_across_by_role;
};

class Exchange {
 public:
  using Key = uint64_t;  // the top byte is a role, for stats
  // Of one rank, that are not answered yet. Memory bounds what a rank is waiting for long before that.
  static constexpr size_t kMostAsked = size_t{1} << 14;

  static Result<std::unique_ptr<Exchange>> start(Transport& transport, ExchangeOptions options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return transport_.rank(); }
  int ranks() const { return transport_.ranks(); }
  // What its buffers and threads take.
  static Bytes own_memory(int ranks, Bytes piece_bytes);

  // From now on `version` of `key` can be had; pulls that wait for it are answered.
  void offer(Key key, uint64_t version, const Offered& offered);
  // No answer is being made from it any more when this returns.
  void withdraw(Key key);
  // The same, and from now on whoever asks for it is refused at once, until it is offered again.
  void refuse_pulls(Key key);
  // How much of this version has been given, to this rank itself as well. What was refused does not count.
  Bytes given(Key key) const;

  struct Pull {
    int from = 0;
    Key key = 0;
    uint64_t version = 0;
    Bytes offset = 0;  // in what is sharded, not in the part that `from` offers
    std::span<std::byte> into;
    Format format = Format::plain;
    Element element = Element::bytes;
    Priority priority = Priority::demand;
    std::string what;  // for errors: "gather 'layer.weight'"
    std::function<void(Result<void>)> done;
  };
  // `done` is called exactly once, by a thread of the exchange; also after close(), with an error. Of this rank itself it
  // may be asked, too. Quantised: offset and size are multiples of an element's, and ranks that want the same numbers begin
  // at the same multiples of kNumbersPerScale of them.
  uint64_t pull(Pull pull);
  void raise_priority(uint64_t id);
  // Pulls and waits.
  Result<void> pull_now(Pull pull);

  Result<void> tell(int to, const Notice& notice);
  Result<void> tell_all(const Notice& notice);  // but this one

  // Until `ready`, which is asked again after every notice and every nudge(); `late` names the rank that keeps it waiting.
  // Fails when any rank has ended, or when the late one has left.
  enum class Timeout { deadline, none };
  Result<void> wait(const std::string& what, const std::function<bool()>& ready,
                    const std::function<int()>& late, Timeout timeout = Timeout::deadline);
  void nudge();

  // Tells the others that nothing more comes from here, and ends the threads. Pulls under way fail. Waits for the threads
  // of the other ranks to hear of it, but only for seconds, and never for their programs. Abort: something went wrong
  // here, and for those who still wait for it this rank has ended.
  enum class Shutdown { orderly, abort };
  void close(Shutdown shutdown = Shutdown::orderly);
  ExchangeStats stats() const;

 private:
  struct Offer {
    Offered what;
    uint64_t version = 0;
    unsigned readers = 0;
    bool withdrawn = false;  // goes with its last reader: no more of them
    Bytes given = 0;
  };
  struct Pending {  // asked of a peer
    Pull pull;
    Bytes arrived = 0;
    bool arriving = false;  // somebody is writing into its memory: it cannot end before that has
    std::optional<Error> failure;  // with which it ends then
    Clock::TimePoint since;        // when there was the last sign of it
  };
  struct Peer {  // all but `sending` under the exchange's mutex
    Mutex sending;
    std::optional<Clock::TimePoint> sending_since;
    std::deque<Message> asked;   // pulls that it waits for
    std::deque<Message> outbox;  // short messages for it
    std::optional<Error> gone;   // why it is not there any more
    bool left = false;           // announced its shutdown
    bool shut_down = false;      // was told of the shutdown here: nothing more is sent
    bool sender_ended = true;    // nothing is sent to it any more
    CondVar to_send;  // for its sender and its server: of what concerns others they need not hear
    CondVar to_answer;
    Thread receiver;
    Thread sender;
    Thread server;
  };
  struct Arrival {
    std::span<std::byte> into;
    Format format;
    Element element;
  };
  struct Late {
    uint64_t id;
    int from;
  };

  Exchange(Transport& transport, ExchangeOptions options);
  Result<void> start_threads();
  Peer& peer(int rank) { return *peers_[static_cast<size_t>(rank)]; }
  const Peer& peer(int rank) const { return *peers_[static_cast<size_t>(rank)]; }

  void receive_from(int from);
  Result<void> take(int from, const Message& message, std::span<std::byte> bounce);
  Result<void> take_data(int from, const Message& message, std::span<std::byte> bounce);
  Result<std::optional<Arrival>> begin_arrival(int from, const Message& message);
  void end_arrival(uint64_t id, Bytes bytes, const Result<void>& received);
  void send_loop(int to);
  void serve(int to);
  std::optional<Message> next_for(Peer& peer) BOTTOMLESS_REQUIRES(mutex_);
  bool can_answer(const Message& message) const BOTTOMLESS_REQUIRES(mutex_);
  Result<void> answer(int to, const Message& message, std::span<std::byte> encoded);
  Result<bool> send_pieces(int to, const Message& message, const Offered& offered, uint64_t version,
                           std::span<std::byte> encoded);
  Result<void> refuse(int to, uint64_t id, const Error& why);
  Result<void> deliver(int to, const Message& header, std::span<const std::byte> payload);

  void wake_all() BOTTOMLESS_REQUIRES(mutex_);
  void give_up_on(int peer, const Error& why);
  void finish(uint64_t id, Result<void> outcome);
  void fail(uint64_t id, int from, const Error& why);
  void break_off(int because_of);
  bool all_parted() const BOTTOMLESS_REQUIRES(mutex_);
  std::chrono::nanoseconds timeout() const BOTTOMLESS_REQUIRES(mutex_);
  void watch_deadlines();
  void report_late(const std::vector<Late>& late);
  std::string ask_status(int of);
  Error lost(int peer, const std::string& what) const;

  Transport& transport_;
  const ExchangeOptions options_;
  const Clock& clock_;
  const Node node_;  // of this rank
  PieceCache pieces_;
  mutable Mutex mutex_;
  CondVar changed_;  // for those who wait for others
  CondVar watch_;    // for the watchdog, which need not look at everything that changes
  bool closing_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  bool served_ BOTTOMLESS_GUARDED_BY(mutex_) = false;   // closing, and nothing is answered any more
  bool aborted_ BOTTOMLESS_GUARDED_BY(mutex_) = false;  // without an orderly shutdown
  bool ended_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::optional<int> broken_by_ BOTTOMLESS_GUARDED_BY(mutex_);  // for whose sake all was closed
  uint64_t next_id_ BOTTOMLESS_GUARDED_BY(mutex_) = 1;
  std::unordered_map<Key, Offer> offers_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, Pending> pending_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::optional<std::string>> statuses_ BOTTOMLESS_GUARDED_BY(mutex_);
  ExchangeStats stats_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Peer>> peers_;
  Thread watchdog_;
};

}  // namespace bottomless
