#include "plan/speed_measurement.h"

#include <algorithm>
#include <utility>

namespace bottomless {
namespace {

constexpr double kQuietShare = 0.9;  // of the processor time that the threads could have had
constexpr size_t kQuietPasses = 5;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double wall_seconds(const std::vector<PassTime>& passes) {
  double sum = 0;
  for (const PassTime& pass : passes) sum += pass.wall_seconds;
  return sum;
}

std::vector<double> speeds(const std::vector<PassTime>& passes) {
  std::vector<double> found;
  for (const PassTime& pass : passes) {
    if (pass.wall_seconds > 0) found.push_back(1 / pass.wall_seconds);
  }
  return found;
}

}  // namespace

bool SpeedMeasurement::is_quiet(const PassTime& pass) const {
  return pass.threads == PassThreads::all &&
         pass.processor_seconds >= kQuietShare * threads_ * pass.wall_seconds;
}

std::vector<PassTime> SpeedMeasurement::quiet_passes() const {
  std::vector<PassTime> quiet;
  for (const PassTime& pass : passes_) {
    if (is_quiet(pass)) quiet.push_back(pass);
  }
  return quiet;
}

bool SpeedMeasurement::is_done() const {
  const std::vector<PassTime> quiet = quiet_passes();
  return (quiet.size() >= kQuietPasses && wall_seconds(quiet) >= time_.quiet_seconds) ||
         wall_seconds(passes_) >= time_.most_seconds;
}

SpeedRange SpeedMeasurement::speed() const {
  const std::vector<double> undisturbed = speeds(quiet_passes());
  if (undisturbed.size() >= kQuietPasses) {
    return {median(undisturbed), *std::max_element(undisturbed.begin(), undisturbed.end()), true};
  }
  const std::vector<double> reached = speeds(passes_);
  if (reached.empty()) return {};
  const double best = *std::max_element(reached.begin(), reached.end());
  return {best,
          std::max({best, speed_by_processor_time(PassThreads::all),
                    speed_by_processor_time(PassThreads::one)}),
          false};
}

bool SpeedMeasurement::wants_one_thread() const {
  return threads_ > 1 && !passes_.empty() && passes_.back().threads == PassThreads::all &&
         !is_quiet(passes_.back());
}

double SpeedMeasurement::speed_by_processor_time(PassThreads threads) const {
  std::vector<double> found;
  for (const PassTime& pass : passes_) {
    if (pass.threads == threads && pass.processor_seconds > 0)
      found.push_back(threads_ / pass.processor_seconds);
  }
  return found.empty() ? 0 : median(std::move(found));
}

SpeedRange merged(const SpeedRange& before, const SpeedRange& now) {
  if (now.is_quiet) return now;
  if (before.is_quiet) return before;
  const double low = std::max(before.low, now.low);
  return {low, std::max(low, now.high), false};
}

double StepFloor::share_of(double seconds) {
  seconds_ = std::min(seconds_, seconds);
  return seconds > 0 ? seconds_ / seconds : 1;
}

}  // namespace bottomless
