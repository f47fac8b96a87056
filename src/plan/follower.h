// Finds the operations of a running step in a recorded one. Operations that the recorded step does not
// have are passed over, ones that do not come are skipped as soon as a few in a row are found again.
// Thread-safety: none; the engine locks.
// Lifetime: the trace must outlive being followed.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "plan/trace.h"

namespace bottomless {

class Follower {
 public:
  static constexpr size_t kInARow = 3;     // as many must agree to find the way back
  static constexpr size_t kWindow = 4096;  // events to either side that are searched

  // From the event `at` on.
  void follow(const Trace* trace, size_t at = 0);

  // The event of the trace that this operation is, or kNone.
  uint32_t next(uint64_t signature);

  const Trace* trace() const { return trace_; }
  size_t position() const { return position_; }  // the event expected next
  bool lost() const { return lost_; }            // the last operation was not the expected one
  bool departed() const { return departed_; }    // since follow(): some of it did not come

 private:
  bool agrees_before(size_t event) const;

  const Trace* trace_ = nullptr;
  size_t position_ = 0;
  std::array<uint64_t, kInARow> recent_{};  // signatures, the newest last
  bool lost_ = false;
  bool departed_ = false;
};

}  // namespace bottomless
