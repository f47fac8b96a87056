// Work on storages that is deferred until somebody wants one of them, such as the update of a parameter: what there is, in
// which order it runs, and which of it nobody can see the outcome of any more.
// Thread-safety: none; the engine locks. DeferredWork::run() is called without the lock.
// Lifetime: a storage outlives the work deferred on it.
#pragma once
#include <bottomless/result.h>

#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "engine/block.h"

namespace bottomless {

class DeferredWork {
 public:
  virtual ~DeferredWork() = default;
  // Called once by whoever comes first, with nothing locked; again if it failed. Pins what it works on
  // as any operation does, and either does all of its work or none.
  virtual Result<void> run() = 0;

  struct Touched {
    Storage* storage;
    bool written;
  };
  const std::vector<Touched>& storages() const { return storages_; }
  bool is_running() const { return runner_.has_value(); }
  bool runs_here() const { return runner_ == std::this_thread::get_id(); }

 private:
  friend class DeferredQueue;
  std::vector<Touched> storages_;
  std::optional<std::thread::id> runner_;
};

class DeferredQueue {
 public:
  bool empty() const { return queue_.empty(); }
  static bool takes_more(
      const Storage& storage);  // a loop that nobody looks at must not grow for ever

  void add(std::shared_ptr<DeferredWork> work, std::vector<DeferredWork::Touched> storages);
  DeferredWork& oldest() const { return *queue_.front(); }
  // What has to run first of all that is deferred on the storage; null: nothing is, or the calling thread runs it.
  static DeferredWork* first_of(const Storage& storage);

  static void begin(DeferredWork& work) { work.runner_ = std::this_thread::get_id(); }
  static void end(DeferredWork& work) { work.runner_.reset(); }

  // The storages that were freed meanwhile and that nothing is deferred on any more are added to `released`.
  std::shared_ptr<DeferredWork> remove(DeferredWork& work, std::vector<Storage*>& released);
  // Work that would change only storages that have been freed since.
  std::vector<DeferredWork*> unseen() const;

  // Destroying work frees the small inputs that it took by value, and whoever frees needs the engine's lock: what has run
  // is kept until somebody can destroy it without.
  void finish(std::shared_ptr<DeferredWork> work) { finished_.push_back(std::move(work)); }
  std::vector<std::shared_ptr<DeferredWork>> take_finished() {
    return std::exchange(finished_, {});
  }

 private:
  std::deque<std::shared_ptr<DeferredWork>> queue_;  // the oldest first
  std::vector<std::shared_ptr<DeferredWork>> finished_;
};

}  // namespace bottomless
