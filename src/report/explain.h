// What a step needs and moves, what limits it, and what another limit would make of it.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>

#include <string>
#include <vector>

#include "plan/step_record.h"

namespace bottomless {

struct Forecast {  // of the step under some limit
  Bytes limit = 0;
  double seconds = 0;
  Bytes read = 0;
  Bytes written = 0;
};

struct OperatorStall {
  std::string name;
  double seconds = 0;
  uint64_t times = 0;
};

struct Explanation {
  double measured = 0;   // seconds of the step
  double computing = 0;  // of these
  double stalled = 0;
  Forecast planned;                      // under the limit it ran with
  Bytes read = 0, written = 0;           // as measured
  Bytes bound = 0;                       // no schedule moves less
  Bytes needs = 0;                       // the least limit under which nothing moves
  std::array<Bytes, kKinds> bytes_of{};  // all blocks of the step by kind
  std::vector<Forecast> forecasts;       // under other limits, the smallest first
  std::vector<OperatorStall> stalls;     // the longest first
  std::string verdict;                   // what limits this step, and what would make it faster
};

Explanation explain(const StepRecord& record);

// For a terminal.
std::string text_of(const Explanation& explanation);
std::string json_of(const Explanation& explanation);

}  // namespace bottomless
