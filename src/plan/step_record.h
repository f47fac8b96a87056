// What is known of one step that has run: what it did, what was planned, and how it went.
// Thread-safety: none; a value.
#pragma once
#include <bottomless/bytes.h>

#include <array>
#include <vector>

#include "base/kind.h"
#include "plan/schedule.h"
#include "plan/simulation.h"
#include "plan/trace.h"

namespace bottomless {

// How things stood when an event had all it needed.
struct Moment {
  double asked = 0;  // seconds; when the event began to wait
  double ready = 0;
  std::array<Bytes, kKinds> resident{};
  Bytes read = 0;  // since the engine began
  Bytes written = 0;
};

struct StepRecord {
  Trace trace;
  Schedule schedule;
  std::vector<Moment> moments;  // like trace.events
  double ended = 0;
  Bytes limit = 0;
  Bytes capacity = 0;  // what the schedule was made for
  Bytes ahead = 0;     // of it, left to what is fetched before it is needed
  Rates rates;         // of the disk while it was busy

  bool empty() const { return moments.empty(); }
  double seconds() const { return empty() ? 0 : ended - moments.front().asked; }
};

}  // namespace bottomless
