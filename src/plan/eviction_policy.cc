#include "plan/eviction_policy.h"

namespace bottomless {

Recency::Recency() { ring_.before = ring_.after = &ring_; }

void Recency::add(EvictionCandidate& candidate) {
  candidate.before = ring_.before;
  candidate.after = &ring_;
  ring_.before->after = &candidate;
  ring_.before = &candidate;
}

void Recency::remove(EvictionCandidate& candidate) {
  candidate.before->after = candidate.after;
  candidate.after->before = candidate.before;
  candidate.before = candidate.after = nullptr;
}

EvictionCandidate* Recency::victim(uint64_t) {
  return ring_.after == &ring_ ? nullptr : ring_.after;
}

EvictionCandidate* Farthest::victim(uint64_t position) {
  // Whoever used the newest may still be at it, outside any operation: an access may need several at once.
  constexpr int kJustUsed = 4;
  const EvictionCandidate* end = &ring_;
  for (int i = 0; i < kJustUsed && end->before != &ring_; ++i) end = end->before;
  EvictionCandidate* farthest = nullptr;
  for (EvictionCandidate* each = ring_.after; each != end; each = each->after) {
    if (each->announced) continue;
    if (each->next_use < position) return each;
    if (farthest == nullptr || each->next_use > farthest->next_use) farthest = each;
  }
  return farthest != nullptr ? farthest : Recency::victim(position);
}

}  // namespace bottomless
