#include "report/training_status.h"

#include <algorithm>
#include <vector>

#include "base/status_line.h"
#include "report/print.h"

namespace bottomless {
namespace {

double share_done(const TrainingStatus& status) {
  return status.steps == 0 ? 1
                           : std::min(1.0, static_cast<double>(status.last.step) /
                                               static_cast<double>(status.steps));
}

std::string percent(double share) { return print("%d %%", static_cast<int>(100 * share + 1e-9)); }

std::string hardware(double share) { return percent(std::min(1.0, share)) + " of the hardware"; }

// Known once a step is done here: the others are taken to last as long.
std::string time_left(const TrainingStatus& status) {
  if (status.steps_here == 0 || status.last.step >= status.steps) return "";
  const double each = status.elapsed_seconds / static_cast<double>(status.steps_here);
  return duration_text(each * static_cast<double>(status.steps - status.last.step)) + " left";
}

std::string speed(const StepMetrics& metrics) {
  return print(metrics.tokens_per_second < 10 ? "%.1f tokens/s" : "%.0f tokens/s",
               metrics.tokens_per_second);
}

double filled(Bytes bytes, Bytes limit) {
  return limit == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(limit);
}

std::string used(const char* what, Bytes bytes, Bytes limit) {
  const std::string text = what + (" " + format_bytes(bytes));
  return limit == 0 ? text : text + " of " + format_bytes(limit);
}

// Joined by commas; empty ones and, from there on, what does not fit are left out.
std::string joined(const std::vector<std::string>& parts, size_t columns) {
  std::string text;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    const std::string with = text.empty() ? part : text + ", " + part;
    if (with.size() > columns) break;
    text = with;
  }
  return text;
}

}  // namespace

std::string bar_of(const TrainingStatus& status, size_t columns) {
  constexpr size_t kWidth = 20, kSmall = 5;
  const StepMetrics& last = status.last;
  const double share = share_done(status);
  std::vector<std::string> parts{gauge(share, kWidth) + " " + percent(share), time_left(status),
                                 print("loss %.4f", last.loss), speed(last)};
  if (last.hardware_share.has_value()) {
    parts.push_back(hardware(*last.hardware_share));
  }
  parts.push_back("memory " + gauge(filled(last.memory, last.memory_limit), kSmall) + " " +
                  format_bytes(last.memory));
  const std::string disk_gauge =
      last.disk_limit == 0 ? "" : gauge(filled(last.disk, last.disk_limit), kSmall) + " ";
  parts.push_back("disk " + disk_gauge + format_bytes(last.disk));
  parts.push_back(print("step %lu of %lu", static_cast<unsigned long>(last.step),
                        static_cast<unsigned long>(status.steps)));
  return joined(parts, columns);
}

std::string line_of(const TrainingStatus& status) {
  const StepMetrics& last = status.last;
  std::vector<std::string> parts{print("step %lu of %lu", static_cast<unsigned long>(last.step),
                                       static_cast<unsigned long>(status.steps)),
                                 print("loss %.4f", last.loss)};
  if (last.evaluation_loss.has_value()) {
    parts.push_back(print("evaluation loss %.4f", *last.evaluation_loss));
  }
  parts.push_back(speed(last));
  if (last.hardware_share.has_value()) {
    parts.push_back(hardware(*last.hardware_share));
  }
  parts.push_back(used("memory", last.memory, last.memory_limit));
  parts.push_back(used("disk", last.disk, last.disk_limit));
  parts.push_back(time_left(status));
  return joined(parts, std::string::npos);
}

}  // namespace bottomless
