// Deferred work on storages: done before anybody sees that it was not.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/engine.h"

namespace bottomless {
namespace {

constexpr size_t kMostDeferred =
    4096;  // to one storage; a loop that nobody looks at must not grow for ever

}  // namespace

bool Engine::defer(std::span<const Need> needs, std::shared_ptr<DeferredWork> work) {
  MutexLock lock(mutex_);
  // Where everything fits, nothing is gained by waiting.
  if (!short_of_room_ && options_.eviction != Eviction::eagerly) return false;
  while (written_in_sight(needs)) stall();
  std::vector<DeferredWork::Touched> storages;
  for (const Need& need : needs) {
    Storage* storage = find(need.address);
    if (storage == nullptr || storage->dead || storage->deferred.size() >= kMostDeferred)
      return false;
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
  for (const auto& [storage, written] : storages) {
    storage->deferred.push_back(work.get());
    conceal(*storage);
  }
  work->storages_ = std::move(storages);
  deferred_.push_back(std::move(work));
  ++stats_.deferred;
  return true;
}

// What the disk reads in plain sight cannot be hidden before it has.
bool Engine::written_in_sight(std::span<const Need> needs) const {
  for (const Need& need : needs) {
    const Storage* storage = find(need.address);
    if (storage == nullptr) continue;
    for (const Block& block : storage->blocks) {
      if (block.state == State::writing && !block.lifted) return true;
    }
  }
  return false;
}

// Nobody may see what is about to change: an access outside any operation is to fault.
void Engine::conceal(Storage& storage) {
  for (Block& block : storage.blocks) {
    if (block.state != State::resident || block.access == Access::none || block.pins > 0) continue;
    heap_->protect(block.at, block.bytes, Access::none);
    block.access = Access::none;
  }
}

// The work that has to be done first of all that is deferred on these ranges; null: there is none, or the
// caller is doing it.
DeferredWork* Engine::first_deferred(std::span<const Need> needs) {
  for (const Need& need : needs) {
    const Storage* storage = find(need.address);
    if (storage == nullptr || storage->deferred.empty()) continue;
    DeferredWork* first = storage->deferred.front();
    if (first->runner_ != std::this_thread::get_id()) return first;
  }
  return nullptr;
}

Result<void> Engine::flush(std::span<const Need> needs, Running running) {
  while (!deferred_.empty()) {
    DeferredWork* first = first_deferred(needs);
    if (first == nullptr) return {};
    if (first->runner_) {
      if (running == Running::let_be) return {};
      stall();
      continue;
    }
    if (Result<void> done = run_deferred(*first); !done.ok()) return done;
  }
  return {};
}

Result<void> Engine::run_deferred(DeferredWork& work) {
  work.runner_ = std::this_thread::get_id();
  mutex_.unlock();
  Result<void> outcome = work.run();
  mutex_.lock();
  work.runner_.reset();
  // It has made accessible what later work, or the same if it failed, is still to change.
  for (const auto& [storage, written] : work.storages_) {
    if (storage->deferred.size() > (outcome.ok() ? 1 : 0)) conceal(*storage);
  }
  if (outcome.ok()) finished_.push_back(remove_deferred(work));
  announce();
  return outcome;
}

// Destroying work frees the small inputs that it took by value, and whoever frees needs the engine's lock.
bool Engine::destroy_finished() {
  if (finished_.empty()) return false;
  std::vector<std::shared_ptr<DeferredWork>> finished = std::move(finished_);
  finished_.clear();
  mutex_.unlock();
  finished.clear();
  mutex_.lock();
  return true;
}

std::shared_ptr<DeferredWork> Engine::remove_deferred(DeferredWork& work) {
  for (const auto& [storage, written] : std::exchange(work.storages_, {})) {
    std::erase(storage->deferred, &work);
    if (storage->deferred.empty() && storage->dropped) let_die(*storage);
  }
  const auto found = std::find_if(deferred_.begin(), deferred_.end(),
                                  [&](const auto& each) { return each.get() == &work; });
  std::shared_ptr<DeferredWork> removed = std::move(*found);
  deferred_.erase(found);
  return removed;
}

Result<void> Engine::flush_deferred() {
  MutexLock lock(mutex_);
  while (!deferred_.empty()) {
    DeferredWork& first = *deferred_.front();
    if (first.runner_ == std::this_thread::get_id()) return {};
    if (first.runner_) {
      stall();
      continue;
    }
    if (Result<void> done = run_deferred(first); !done.ok()) return done;
  }
  destroy_finished();
  return {};
}

void Engine::drop_unseen_deferred() {
  std::vector<std::shared_ptr<DeferredWork>> removed;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  std::unordered_set<const Storage*> wanted;  // by what comes later
  std::vector<DeferredWork*> unseen;
  for (auto each = deferred_.rbegin(); each != deferred_.rend(); ++each) {
    DeferredWork& work = **each;
    const bool seen =
        work.runner_ || std::any_of(work.storages_.begin(), work.storages_.end(), [&](auto& each) {
          return each.written && (!each.storage->dropped || wanted.contains(each.storage));
        });
    if (seen) {
      for (const auto& each : work.storages_) wanted.insert(each.storage);
    } else {
      unseen.push_back(&work);
    }
  }
  for (DeferredWork* work : unseen) removed.push_back(remove_deferred(*work));
}

}  // namespace bottomless
