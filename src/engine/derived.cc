// Numbers that are worked out from a storage's content while it is in memory, and asked for when it may not be.
#include <algorithm>
#include <memory>

#include "engine/engine.h"

namespace bottomless {

std::optional<uint64_t> Engine::watch(const void* address) {
  MutexLock lock(mutex_);
  Storage* storage = table_.find(address);
  if (storage == nullptr || storage->dead || !storage->deferred.empty()) return std::nullopt;
  const auto is_pinned = [](const Block& block) { return block.pins > 0; };
  if (std::ranges::any_of(storage->blocks, is_pinned)) return std::nullopt;
  mover_.make_read_only(*storage);
  storage->watch = std::make_unique<Watch>(Watch{.id = ++watches_, .derived = std::nullopt});
  return storage->watch->id;
}

void Engine::keep(const void* address, uint64_t watch, Derived derived) {
  MutexLock lock(mutex_);
  Storage* storage = table_.find(address);
  if (storage != nullptr && storage->watch && storage->watch->id == watch)
    storage->watch->derived = derived;
}

std::optional<double> Engine::kept(const void* address, uint64_t what) const {
  MutexLock lock(mutex_);
  const Storage* storage = table_.find(address);
  if (storage == nullptr || !storage->watch || !storage->deferred.empty()) return std::nullopt;
  const std::optional<Derived>& derived = storage->watch->derived;
  if (!derived || derived->what != what) return std::nullopt;
  return derived->value;
}

}  // namespace bottomless
