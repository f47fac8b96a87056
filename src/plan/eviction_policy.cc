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

EvictionCandidate* Recency::victim() { return ring_.after == &ring_ ? nullptr : ring_.after; }

}  // namespace bottomless
