// A step as a file: what Perfetto and chrome://tracing show, and with it all that explain() needs.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <string>
#include <string_view>

#include "plan/step_record.h"

namespace bottomless {

std::string write_trace(const StepRecord& record);
Result<StepRecord> read_trace(std::string_view text);

}  // namespace bottomless
