// The estimate of a run as one table, with what follows from it.
// Thread-safety: free functions without state.
#pragma once
#include <string>

#include "plan/run_estimate.h"

namespace bottomless {

// For a terminal; the last line is the verdict.
std::string table_of(const RunEstimate& estimate, const RunShape& shape, const RunMachine& machine);
// One sentence: what limits the run, or why it cannot work and what to do.
std::string verdict_of(const RunEstimate& estimate, const RunShape& shape,
                       const RunMachine& machine);
std::string json_of(const RunEstimate& estimate);

}  // namespace bottomless
