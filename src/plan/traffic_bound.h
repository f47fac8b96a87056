// The fewest bytes that any schedule can move for a step that follows itself, and a schedule near it.
// Memory gets a price at each event; with prices, what is best for each block is found by itself, and
// the sum of that, less what all memory is worth, is below what any schedule moves. docs/planner.md has
// the proof.
// Thread-safety: none; a pure function.
#pragma once
#include <bottomless/bytes.h>

#include <vector>

#include "plan/trace.h"

namespace bottomless {

struct TrafficBound {
  Bytes bytes = 0;         // read and written in a step, at least
  std::vector<bool> keep;  // like Trace::uses: what is best at the prices found; need not fit
};

// `reached` is what some schedule moves; more rounds come nearer.
TrafficBound bound_traffic(const Trace& trace, Bytes capacity, Bytes reached, int rounds);

}  // namespace bottomless
