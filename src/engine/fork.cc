// Around fork(): the parent goes on as before, the child reads what was absent when it was forked.
#include <utility>

#include "engine/engine.h"

namespace bottomless {

// The lock is held from before the fork until after it: no record is half changed in the copy. The child
// has no threads to do what was deferred, nor to put back what is written while it is not mapped.
void Engine::before_fork() BOTTOMLESS_NOT_ANALYSED {
  bool flushed = flush_deferred().ok();
  mutex_.lock();
  while (mover_.hidden_writes() > 0 || (flushed && !deferred_.empty())) {
    if (mover_.hidden_writes() > 0) {
      changes_.wait();
      continue;
    }
    mutex_.unlock();
    flushed = flush_deferred().ok();
    mutex_.lock();
  }
}

void Engine::after_fork_in_parent(UniqueFd children) BOTTOMLESS_NOT_ANALYSED {
  mover_.places().freeze(std::move(children));
  mutex_.unlock();
}

void Engine::after_fork_in_child() BOTTOMLESS_NOT_ANALYSED { mutex_.unlock(); }

bool Engine::touch_in_child(const void* address, Access access) noexcept BOTTOMLESS_NOT_ANALYSED {
  while (touching_in_child_.test_and_set(std::memory_order_acquire)) {
  }
  Storage* storage = table_.find(address);
  const bool served = storage != nullptr && storage->deferred.empty() &&
                      mover_.serve_in_child(table_.block_at(*storage, address), access);
  touching_in_child_.clear(std::memory_order_release);
  return served;
}

}  // namespace bottomless
