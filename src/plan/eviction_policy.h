// Decides which block leaves when room is needed. The engine tells the policy which blocks could
// leave; the policy says which of them should. A new policy is a new class.
// Thread-safety: none; the engine locks.
// Lifetime: a candidate is removed before it dies.
#pragma once

namespace bottomless {

// What a policy knows of a block: its place in the policy's own order.
struct EvictionCandidate {
  EvictionCandidate* before = nullptr;
  EvictionCandidate* after = nullptr;

  bool listed() const { return before != nullptr; }
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(EvictionCandidate& candidate) = 0;  // it was just used and may leave from now on
  virtual void remove(EvictionCandidate& candidate) = 0;  // it is in use, has left, or is gone
  virtual EvictionCandidate* victim() = 0;  // who should leave first; null if nobody may
};

// The one whose last use lies farthest back leaves first.
class Recency final : public EvictionPolicy {
 public:
  Recency();
  void add(EvictionCandidate& candidate) override;
  void remove(EvictionCandidate& candidate) override;
  EvictionCandidate* victim() override;

 private:
  EvictionCandidate ring_;  // ring_.after is the oldest, ring_.before the newest
};

}  // namespace bottomless
