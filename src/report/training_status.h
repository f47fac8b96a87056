// How a training run is going, as one line.
// Thread-safety: free functions without state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "report/metrics.h"

namespace bottomless {

struct TrainingStatus {
  StepMetrics last;            // the newest step
  uint64_t steps = 0;          // of the whole run
  uint64_t steps_here = 0;     // done since the process began: a resumed run has more behind it
  double elapsed_seconds = 0;  // in these
};

// For a terminal of so many columns, with what matters most first and gauges where there is room:
// "[####................] 20 %, 1 h 5 min left, loss 3.2140, 812 tokens/s, 71 % of the hardware, memory [####.] 1.80 GiB"
std::string bar_of(const TrainingStatus& status, size_t columns);
// For a file: everything.
std::string line_of(const TrainingStatus& status);

}  // namespace bottomless
