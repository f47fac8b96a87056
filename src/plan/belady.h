// Who leaves when memory is full: the block whose next use lies farthest ahead (Belady).
// Thread-safety: none; a pure function.
#pragma once
#include <bottomless/bytes.h>

#include <vector>

#include "plan/schedule.h"
#include "plan/trace.h"

namespace bottomless {

// For every use when the block is used next and whether it stays until then, as found by going through a few steps
// in a row. Nearly periodic: where two steps end up different, more may be kept than fits.
std::vector<Schedule::Use> keep_soonest(const Trace& trace, Bytes capacity);

}  // namespace bottomless
