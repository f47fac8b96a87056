#include "tokenizers/bpe/word_cache.h"

#include <algorithm>
#include <functional>

namespace bottomless::text {

WordCache::WordCache()
    : entries_(std::make_unique<std::array<Entry, kEntries>>()),
      locks_(std::make_unique<std::array<std::mutex, kLocks>>()) {}

size_t WordCache::place_of(std::string_view word) {
  return std::hash<std::string_view>{}(word) % kEntries;
}

bool WordCache::find(std::string_view word, std::vector<int32_t>& ids) const {
  const size_t place = place_of(word);
  const std::unique_lock lock((*locks_)[place % kLocks], std::try_to_lock);
  if (!lock.owns_lock()) return false;
  const Entry& entry = (*entries_)[place];
  if (entry.word_bytes != word.size() ||
      std::string_view(entry.word.data(), entry.word_bytes) != word) {
    return false;
  }
  ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.id_count);
  return true;
}

void WordCache::keep(std::string_view word, std::span<const int32_t> ids) const {
  const size_t place = place_of(word);
  const std::unique_lock lock((*locks_)[place % kLocks], std::try_to_lock);
  if (!lock.owns_lock()) return;
  Entry& entry = (*entries_)[place];
  if (word.empty() || word.size() > entry.word.size() || ids.size() > entry.ids.size()) return;
  entry.word_bytes = static_cast<uint8_t>(word.size());
  entry.id_count = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), entry.word.begin());
  std::copy(ids.begin(), ids.end(), entry.ids.begin());
}

}  // namespace bottomless::text
