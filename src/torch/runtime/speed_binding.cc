// How the speed of the processor is judged and kept, as Python sees it: torch.ops.bottomless.
// python/bottomless/precision.py uses it, so that both decide alike and share one file.
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "base/machine_cache.h"
#include "plan/speed_measurement.h"

namespace bottomless {
namespace {

// Of each pass the seconds by the wall clock and of the processor, in turns.
std::tuple<double, double, bool, bool> speed_of_passes(const std::vector<double>& seconds,
                                                       int64_t threads, double quiet_seconds,
                                                       double most_seconds) {
  SpeedMeasurement measurement(static_cast<unsigned>(std::max<int64_t>(threads, 1)),
                               {quiet_seconds, most_seconds});
  for (size_t pass = 0; pass + 1 < seconds.size(); pass += 2)
    measurement.add({seconds[pass], seconds[pass + 1]});
  const SpeedRange speed = measurement.speed();
  return {speed.low, speed.high, speed.is_quiet, measurement.is_done()};
}

// None: an empty list.
std::vector<double> measured_before(const std::string& what) {
  return MachineCache::of_user().find(machine_key() + ", " + what).value_or(std::vector<double>());
}

void keep_measured(const std::string& what, const std::vector<double>& numbers) {
  MachineCache::of_user().keep(machine_key() + ", " + what, numbers);
}

TORCH_LIBRARY_FRAGMENT(bottomless, library) {
  library.def(
      "speed_of_passes(float[] seconds, int threads, float quiet_seconds, float most_seconds) -> "
      "(float, float, bool, bool)",
      &speed_of_passes);
  library.def("measured_before(str what) -> float[]", &measured_before);
  library.def("keep_measured(str what, float[] numbers) -> ()", &keep_measured);
}

}  // namespace
}  // namespace bottomless
