// What leaves and what comes back when, for a step that repeats. A block either stays in memory until
// its next use or leaves right after this one; what has left is fetched again as early as there is
// room for it. docs/planner.md says why that is enough and how far it is from the best there is.
// Thread-safety: none; values and pure functions.
#pragma once
#include <bottomless/bytes.h>

#include <cstdint>
#include <vector>

#include "plan/trace.h"

namespace bottomless {

struct Schedule {
  static constexpr uint64_t kNever = ~uint64_t{0};

  struct Use {
    uint64_t next = kNever;  // the event that uses the block next; in the step after: + events
    bool keep = true;        // the block stays until then
  };
  struct Fetch {
    uint32_t block;
    uint32_t start;   // the event that may begin it
    uint64_t needed;  // the event that waits for it; in the step after: + events
  };

  std::vector<Use> uses;       // like Trace::uses
  std::vector<Fetch> fetches;  // in the order of their starts
  Bytes read = 0;              // in a step
  Bytes written = 0;
  Bytes bound = 0;          // no schedule reads and writes less; 0: not known
  std::vector<Bytes> held;  // in memory at each event, besides what is fetched ahead

  Bytes moved() const { return read + written; }

  Bytes own_bytes() const;
};

// The schedule for a step that follows itself, in `capacity` bytes, of which `ahead` are left to what is
// fetched before it is needed.
Schedule make_schedule(const Trace& trace, Bytes capacity, Bytes ahead = 0);

// Where each block of a step goes on in the next one: kNone if it does not.
std::vector<uint32_t> successors(const Trace& trace);

}  // namespace bottomless
