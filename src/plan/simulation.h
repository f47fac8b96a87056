// How long a step takes under a schedule, on a machine of a given speed: the same rules as the engine's,
// over time instead of threads.
// Thread-safety: none; a pure function.
#pragma once
#include <bottomless/bytes.h>

#include <vector>

#include "plan/schedule.h"
#include "plan/trace.h"

namespace bottomless {

struct Rates {  // bytes per second; 0: no time at all
  double read = 0;
  double write = 0;
  double both = 0;  // of reads and writes together; 0: they do not hinder each other
};

struct Prediction {
  double seconds = 0;  // of a step
  double computing = 0;
  Bytes read = 0;
  Bytes written = 0;
  std::vector<float> stalls;  // per event
};

Prediction predict(const Trace& trace, const Schedule& schedule, Bytes capacity,
                   const Rates& rates);

}  // namespace bottomless
