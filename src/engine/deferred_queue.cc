#include "engine/deferred_queue.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace bottomless {

bool DeferredQueue::takes_more(const Storage& storage) {
  constexpr size_t kMost = 4096;
  return storage.deferred.size() < kMost;
}

void DeferredQueue::add(std::shared_ptr<DeferredWork> work,
                        std::vector<DeferredWork::Touched> storages) {
  for (const auto& [storage, written] : storages) storage->deferred.push_back(work.get());
  work->storages_ = std::move(storages);
  queue_.push_back(std::move(work));
}

DeferredWork* DeferredQueue::first_of(const Storage& storage) {
  if (storage.deferred.empty()) return nullptr;
  DeferredWork* first = storage.deferred.front();
  return first->runs_here() ? nullptr : first;
}

std::shared_ptr<DeferredWork> DeferredQueue::remove(DeferredWork& work,
                                                    std::vector<Storage*>& released) {
  for (const auto& [storage, written] : std::exchange(work.storages_, {})) {
    std::erase(storage->deferred, &work);
    if (storage->deferred.empty() && storage->dropped) released.push_back(storage);
  }
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const auto& each) { return each.get() == &work; });
  std::shared_ptr<DeferredWork> removed = std::move(*found);
  queue_.erase(found);
  return removed;
}

std::vector<DeferredWork*> DeferredQueue::unseen() const {
  std::unordered_set<const Storage*> wanted;  // by what comes later
  std::vector<DeferredWork*> unseen;
  for (auto work = queue_.rbegin(); work != queue_.rend(); ++work) {
    const std::vector<DeferredWork::Touched>& storages = (*work)->storages_;
    const bool seen =
        (*work)->is_running() || std::any_of(storages.begin(), storages.end(), [&](auto& each) {
          return each.written && (!each.storage->dropped || wanted.contains(each.storage));
        });
    if (!seen) {
      unseen.push_back(work->get());
      continue;
    }
    for (const auto& each : storages) wanted.insert(each.storage);
  }
  return unseen;
}

}  // namespace bottomless
