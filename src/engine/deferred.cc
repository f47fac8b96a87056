// Deferred work on storages: done before anybody sees that it was not.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

bool Engine::defer(std::span<const Need> needs, std::shared_ptr<DeferredWork> work) {
  MutexLock lock(mutex_);
  // Where everything fits, nothing is gained by waiting.
  if (!room_.has_been_short() && options_.eviction != Eviction::eagerly) return false;
  while (is_written_in_sight(needs)) changes_.wait();
  std::vector<DeferredWork::Touched> storages;
  for (const Need& need : needs) {
    Storage* storage = table_.find(need.address);
    if (storage == nullptr || storage->dead || !DeferredQueue::takes_more(*storage)) return false;
    for (const Block& block : storage->blocks) {
      if (block.pins > 0) return false;  // somebody may be looking at it
    }
    const bool written = need.access == Access::write;
    const auto known = std::find_if(storages.begin(), storages.end(),
                                    [&](const auto& each) { return each.storage == storage; });
    if (known == storages.end()) {
      storages.push_back({storage, written});
    } else {
      known->written = known->written || written;
    }
  }
  // Nobody may see what is about to change.
  for (const auto& [storage, written] : storages) mover_.hide(*storage);
  deferred_.add(std::move(work), std::move(storages));
  ++deferrals_;
  return true;
}

// What the disk reads where it is mapped cannot be hidden before it has.
bool Engine::is_written_in_sight(std::span<const Need> needs) const {
  for (const Need& need : needs) {
    const Storage* storage = table_.find(need.address);
    if (storage == nullptr) continue;
    for (const Block& block : storage->blocks) {
      if (block.state == State::writing && !block.hidden_frames) return true;
    }
  }
  return false;
}

Result<void> Engine::flush(std::span<const Need> needs, Running running) {
  while (!deferred_.empty()) {
    DeferredWork* first = nullptr;
    for (const Need& need : needs) {
      const Storage* storage = table_.find(need.address);
      if (first == nullptr && storage != nullptr) first = DeferredQueue::first_of(*storage);
    }
    if (first == nullptr) return {};
    if (first->is_running()) {
      if (running == Running::let_be) return {};
      changes_.wait();
      continue;
    }
    if (Result<void> done = run(*first); !done.ok()) return done;
  }
  return {};
}

// Until nothing is deferred and the lock was not given up since.
Result<void> Engine::flush_until_stable(std::span<const Need> needs) {
  do {
    if (Result<void> flushed = flush(needs, Running::wait_for); !flushed.ok()) return flushed;
  } while (destroy_finished());
  return {};
}

Result<void> Engine::run(DeferredWork& work) {
  DeferredQueue::begin(work);
  mutex_.unlock();
  Result<void> outcome = work.run();
  mutex_.lock();
  DeferredQueue::end(work);
  // It has made accessible what later work, or the same if it failed, is still to change.
  for (const auto& [storage, written] : work.storages()) {
    if (storage->deferred.size() > (outcome.ok() ? 1 : 0)) mover_.hide(*storage);
  }
  if (outcome.ok()) deferred_.finish(remove(work));
  changes_.announce();
  return outcome;
}

std::shared_ptr<DeferredWork> Engine::remove(DeferredWork& work) {
  std::vector<Storage*> released;
  std::shared_ptr<DeferredWork> removed = deferred_.remove(work, released);
  for (Storage* storage : released) end_life(*storage);
  return removed;
}

bool Engine::destroy_finished() {
  std::vector<std::shared_ptr<DeferredWork>> finished = deferred_.take_finished();
  if (finished.empty()) return false;
  mutex_.unlock();
  finished.clear();
  mutex_.lock();
  return true;
}

Result<void> Engine::flush_deferred() {
  MutexLock lock(mutex_);
  while (!deferred_.empty()) {
    DeferredWork& oldest = deferred_.oldest();
    if (oldest.runs_here()) return {};
    if (oldest.is_running()) {
      changes_.wait();
      continue;
    }
    if (Result<void> done = run(oldest); !done.ok()) return done;
  }
  destroy_finished();
  return {};
}

void Engine::drop_unseen_deferred() {
  std::vector<std::shared_ptr<DeferredWork>> removed;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  for (DeferredWork* work : deferred_.unseen()) removed.push_back(remove(*work));
}

}  // namespace bottomless
