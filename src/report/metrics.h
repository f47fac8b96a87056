// What is known of a training run after one step: a line of metrics.jsonl, a point of every curve.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless {

struct StepMetrics {
  uint64_t step = 0;    // done so far
  double time = 0;      // seconds since 1970
  double seconds = 0;   // that the step took
  uint64_t tokens = 0;  // of all steps so far
  double epochs = 0;    // of the data, the current one as a fraction
  double loss = 0;      // mean over the tokens that count; not a number where it diverged
  std::optional<double> evaluation_loss;
  double learning_rate = 0;
  std::optional<double> gradient_norm;
  double tokens_per_second = 0;
  std::optional<double> hardware_share;  // of the speed that the hardware allows, 1 is all of it
  Bytes memory = 0, memory_limit = 0;
  Bytes disk = 0, disk_limit = 0;  // 0: no limit is known
  Bytes read = 0, written = 0;     // of all steps so far, from and to the disk
  std::optional<double> received;  // bytes, likewise, from other ranks; none: there are none

  bool operator==(const StepMetrics&) const = default;
};

// One JSON object, without an end of line. What is not a number is null.
std::string line_of(const StepMetrics& metrics);
Result<StepMetrics> parse_metrics(std::string_view line);

// All lines of a metrics.jsonl that can be read: a process that was killed may have left half of one.
std::vector<StepMetrics> parse_metrics_lines(std::string_view text);

// The same as named curves, for TensorBoard.
struct Scalar {
  std::string name;
  float value;
};
std::vector<Scalar> scalars_of(const StepMetrics& metrics);

}  // namespace bottomless
