// Around fork(): the parent goes on as before, the child reads what was away when it was forked.
#include <algorithm>
#include <utility>

#include "engine/engine.h"

namespace bottomless {

// The lock is held from before the fork until after it: no record is half changed in the copy. The child
// has no threads to do what was put off, nor to put back what is written out of sight.
void Engine::before_fork() BOTTOMLESS_NOT_ANALYSED {
  bool flushed = flush_deferred().ok();
  mutex_.lock();
  while (lifted_ > 0 || (flushed && !deferred_.empty())) {
    if (lifted_ > 0) {
      stall();
      continue;
    }
    mutex_.unlock();
    flushed = flush_deferred().ok();
    mutex_.lock();
  }
}

void Engine::after_fork_in_parent(UniqueFd children) BOTTOMLESS_NOT_ANALYSED {
  places_.freeze(std::move(children));
  mutex_.unlock();
}

void Engine::after_fork_in_child() BOTTOMLESS_NOT_ANALYSED { mutex_.unlock(); }

bool Engine::touch_in_child(const void* address, Access access) noexcept BOTTOMLESS_NOT_ANALYSED {
  while (touching_in_child_.test_and_set(std::memory_order_acquire)) {
  }
  bool served = false;
  if (Storage* storage = find(address); storage != nullptr && storage->deferred.empty()) {
    const auto from = static_cast<Bytes>(static_cast<const std::byte*>(address) - storage->at);
    Block& block = storage->blocks[std::min(from / block_bytes_, storage->blocks.size() - 1)];
    const bool here = block.state == State::resident || block.state == State::writing;
    // A copy of the parent's memory, and the child's own to write.
    if (here) heap_->protect(block.at, block.bytes, access);
    served = here || heap_->put_copy(block.at, block.bytes, [&](std::byte* copy) {
      if (block.outside) return false;  // a child cannot ask the source
      return block.place.empty() ||
             store_.read_in_child(block.place.extent, {copy, round_to_store(block.bytes)});
    });
    if (served && block.state != State::resident) block.become(State::resident);
  }
  touching_in_child_.clear(std::memory_order_release);
  return served;
}

}  // namespace bottomless
