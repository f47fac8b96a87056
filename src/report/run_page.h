// A training run as one page: a self-contained HTML file with the loss curve first, in the look of the page of a step.
// Thread-safety: a free function without state.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "report/metrics.h"

namespace bottomless {

// `name` says what was trained; the steps are in order.
std::string page_of(std::string_view name, std::span<const StepMetrics> steps);

}  // namespace bottomless
