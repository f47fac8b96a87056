// One step as one page: a self-contained HTML file with pictures first.
// Thread-safety: a free function without state.
#pragma once
#include <string>

#include "plan/step_record.h"
#include "report/explain.h"

namespace bottomless {

std::string page_of(const StepRecord& record, const Explanation& explanation);

}  // namespace bottomless
