// Decides which block leaves when room is needed. The engine tells the policy which blocks could
// leave; the policy says which of them should. A new policy is a new class.
// Thread-safety: none; the engine locks.
// Lifetime: a candidate is removed before it dies.
#pragma once
#include <cstdint>

namespace bottomless {

// What a policy knows of a block: its place in the policy's own order, and when it is used next.
struct EvictionCandidate {
  static constexpr uint64_t kUnknown = 0;
  static constexpr uint64_t kNever = ~uint64_t{0};

  EvictionCandidate* before = nullptr;
  EvictionCandidate* after = nullptr;
  uint64_t next_use = kUnknown;  // as positions are counted
  bool announced = false;        // by work beside the program's own, which is about to use it

  bool listed() const { return before != nullptr; }
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void add(EvictionCandidate& candidate) = 0;  // it was just used and may leave from now on
  virtual void remove(EvictionCandidate& candidate) = 0;  // it is in use, has left, or is gone
  // Who should leave first; null if nobody may. What comes next is at `position`: what was to be used before it was
  // expected and did not come.
  virtual EvictionCandidate* victim(uint64_t position) = 0;
};

// The one whose last use lies farthest back leaves first.
class Recency : public EvictionPolicy {
 public:
  Recency();
  void add(EvictionCandidate& candidate) override;
  void remove(EvictionCandidate& candidate) override;
  EvictionCandidate* victim(uint64_t position) override;

 protected:
  EvictionCandidate ring_;  // ring_.after is the oldest, ring_.before the newest
};

// The one whose next use lies farthest ahead leaves first (Belady); before it, those of which nothing is
// known, by recency; last of all the few that were just used and what is announced.
class Farthest final : public Recency {
 public:
  EvictionCandidate* victim(uint64_t position) override;
};

}  // namespace bottomless
