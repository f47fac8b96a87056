// Work that is owed to storages: put off, and done before anybody sees that it was.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/engine.h"

namespace bottomless {
namespace {

constexpr size_t kMostOwed =
    4096;  // to one storage; a loop that nobody looks at must not grow for ever

}  // namespace

bool Engine::postpone(std::span<const Need> needs, std::shared_ptr<Postponed> work) {
  MutexLock lock(mutex_);
  // Where everything fits, nothing is gained by waiting.
  if (!short_of_room_ && options_.eviction != Eviction::eagerly) return false;
  while (written_in_sight(needs)) stall();
  std::vector<Postponed::Touched> storages;
  for (const Need& need : needs) {
    Storage* storage = find(need.address);
    if (storage == nullptr || storage->dead || storage->owed.size() >= kMostOwed) return false;
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
    storage->owed.push_back(work.get());
    conceal(*storage);
  }
  work->storages_ = std::move(storages);
  debts_.push_back(std::move(work));
  ++stats_.postponed;
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

// The work that has to be done first of all that these ranges are owed; null: there is none, or the
// caller is doing it.
Postponed* Engine::first_debt(std::span<const Need> needs) {
  for (const Need& need : needs) {
    const Storage* storage = find(need.address);
    if (storage == nullptr || storage->owed.empty()) continue;
    Postponed* first = storage->owed.front();
    if (first->runner_ != std::this_thread::get_id()) return first;
  }
  return nullptr;
}

Result<void> Engine::settle(std::span<const Need> needs, Running running) {
  while (!debts_.empty()) {
    Postponed* first = first_debt(needs);
    if (first == nullptr) return {};
    if (first->runner_) {
      if (running == Running::let_be) return {};
      stall();
      continue;
    }
    if (Result<void> done = settle(*first); !done.ok()) return done;
  }
  return {};
}

Result<void> Engine::settle(Postponed& work) {
  work.runner_ = std::this_thread::get_id();
  mutex_.unlock();
  Result<void> outcome = work.run();
  mutex_.lock();
  work.runner_.reset();
  // It has shown what may be owed more, or, if it failed, is owed still.
  for (const auto& [storage, written] : work.storages_) {
    if (storage->owed.size() > (outcome.ok() ? 1 : 0)) conceal(*storage);
  }
  if (outcome.ok()) spent_.push_back(strike(work));
  announce();
  return outcome;
}

// Destroying work frees the small inputs that it took by value, and whoever frees needs the engine's lock.
bool Engine::bury_spent() {
  if (spent_.empty()) return false;
  std::vector<std::shared_ptr<Postponed>> spent = std::move(spent_);
  spent_.clear();
  mutex_.unlock();
  spent.clear();
  mutex_.lock();
  return true;
}

std::shared_ptr<Postponed> Engine::strike(Postponed& work) {
  for (const auto& [storage, written] : std::exchange(work.storages_, {})) {
    std::erase(storage->owed, &work);
    if (storage->owed.empty() && storage->dropped) let_die(*storage);
  }
  const auto found = std::find_if(debts_.begin(), debts_.end(),
                                  [&](const auto& each) { return each.get() == &work; });
  std::shared_ptr<Postponed> struck = std::move(*found);
  debts_.erase(found);
  return struck;
}

Result<void> Engine::settle_all() {
  MutexLock lock(mutex_);
  while (!debts_.empty()) {
    Postponed& first = *debts_.front();
    if (first.runner_ == std::this_thread::get_id()) return {};
    if (first.runner_) {
      stall();
      continue;
    }
    if (Result<void> done = settle(first); !done.ok()) return done;
  }
  bury_spent();
  return {};
}

void Engine::forgive_unseen() {
  std::vector<std::shared_ptr<Postponed>> struck;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  std::unordered_set<const Storage*> wanted;  // by what comes later
  std::vector<Postponed*> unseen;
  for (auto debt = debts_.rbegin(); debt != debts_.rend(); ++debt) {
    Postponed& work = **debt;
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
  for (Postponed* work : unseen) struck.push_back(strike(*work));
}

}  // namespace bottomless
