// A second set of shares, within a node. What a rank has gathered from the owners once, it keeps a part of; the ranks of a
// node together keep all of it. From then on they gather it from each other, and nothing crosses the network between nodes
// until it is renewed. It only saves traffic: who has not kept its part says so at once, and the owners are asked instead.
// Thread-safety: every call from any thread, but for one Kept invalidate() and renew() from one at a time.
// Lifetime: exchange and engine outlive it; it outlives every fetch of a Gather that was given one of its Kept.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "ranks/exchange.h"
#include "ranks/layout.h"

namespace bottomless {

class NodeShares {
 public:
  // Of one storage that is gathered.
  class Kept {
   public:
    Exchange::Key key() const { return key_; }
    const std::vector<Share>& shares() const { return shares_; }  // by rank; of other nodes empty
    // Whether this rank has kept all of its part of this version: then the others of the node should have, too.
    bool complete(uint64_t version) const;
    // These bytes of the storage have come from their owners. Never waits; a thread keeps what belongs to this rank.
    void gathered(uint64_t version, Bytes offset, Bytes bytes);

    // What was kept is of no use any more: nobody is given it when this returns, nor is the storage looked at.
    void invalidate();
    // From now on this version of what is gathered into the storage at `whole` is kept.
    void renew(uint64_t version, const std::byte* whole);

   private:
    friend class NodeShares;
    Kept(NodeShares& all, Exchange::Key key, std::vector<Share> shares)
        : all_(all), key_(key), shares_(std::move(shares)) {}

    NodeShares& all_;
    const Exchange::Key key_;
    const std::vector<Share> shares_;
    std::byte* part_ = nullptr;  // this rank's; null: it has none
    // Under the mutex of all.
    const std::byte* whole_ = nullptr;
    std::optional<uint64_t> version_;  // none: nothing is to be kept
    std::set<Bytes> here_;             // offsets of blocks whose part is kept
    Bytes bytes_ = 0;                  // of these parts
  };

  NodeShares(Exchange& exchange, Engine& engine, Bytes piece_bytes);
  ~NodeShares();
  NodeShares(const NodeShares&) = delete;
  NodeShares& operator=(const NodeShares&) = delete;
  static Bytes own_memory(Bytes piece_bytes) {
    return Engine::bypass_buffer_bytes(piece_bytes) + Thread::kStackBytes;
  }

  Result<void> start();
  // Under a key that the ranks of the node know it by. Nothing is kept before it is renewed.
  Result<Kept*> add(Exchange::Key key, std::vector<Share> shares);
  // Why something could not be kept, if that was so.
  std::optional<Error> failure() const;
  void close();

 private:
  struct Task {
    Kept* kept;
    uint64_t version;
    Bytes offset;
    Bytes bytes;
  };
  struct FreeBuffer {
    void operator()(std::byte* at) const;
  };

  Share part_of(const Task& task) const;
  std::optional<Task> next_task() BOTTOMLESS_REQUIRES(mutex_);
  void run();
  Result<bool> keep(const Task& task, const std::byte* whole);
  void note_kept(const Task& task) BOTTOMLESS_REQUIRES(mutex_);

  Exchange& exchange_;
  Engine& engine_;
  const Bytes piece_bytes_;
  std::unique_ptr<std::byte, FreeBuffer> buffer_;  // of the thread
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::unique_ptr<Kept>> all_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::deque<Task> tasks_ BOTTOMLESS_GUARDED_BY(mutex_);
  const Kept* busy_with_ BOTTOMLESS_GUARDED_BY(mutex_) = nullptr;
  std::optional<Error> failure_ BOTTOMLESS_GUARDED_BY(mutex_);
  bool closing_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace bottomless
