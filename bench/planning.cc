// How long the making of a schedule takes, for the largest step that is recorded: what a limit leaves for descriptions
// (an eighth of kMostPlanning) full of a network's operations. The engine does this without its lock.
//   planning [share of memory that the step has, default 0.5] [layers: default as many as are recorded]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "plan/schedule.h"
#include "support/trace_maker.h"

namespace {

constexpr bottomless::Bytes kLargest = bottomless::Bytes{4}
                                       << 20;  // see Prefetcher and kMostPlanning
constexpr int kRuns = 5;

bottomless::Trace step_of(int layers) {
  return bottomless::training_step(
      {.layers = layers, .parameter = 100, .activation = 20, .clipped = true});
}

}  // namespace

int main(int count, char** arguments) {
  using namespace bottomless;  // NOLINT: of main
  const double share = count > 1 ? std::atof(arguments[1]) : 0.5;
  int layers = count > 2 ? std::atoi(arguments[2]) : 1;
  if (count <= 2) {
    while (step_of(2 * layers).own_bytes() <= kLargest) layers *= 2;
    for (int more = layers / 2; more > 0; more /= 2) {
      if (step_of(layers + more).own_bytes() <= kLargest) layers += more;
    }
  }
  const Trace trace = step_of(layers);
  Bytes all = 0;
  for (const Bytes bytes : trace.block_bytes) all += bytes;
  const Bytes capacity =
      std::max(trace.most_at_once(), static_cast<Bytes>(share * static_cast<double>(all)));
  double seconds[kRuns];
  Schedule schedule;
  for (double& run : seconds) {
    const auto start = std::chrono::steady_clock::now();
    schedule = make_schedule(trace, capacity, capacity / 8);
    run = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::sort(std::begin(seconds), std::end(seconds));
  std::printf(
      "{\"layers\": %d, \"events\": %zu, \"uses\": %zu, \"blocks\": %zu, \"share\": %.2f, "
      "\"moved\": %zu, "
      "\"bound\": %zu, \"seconds\": %.3f, \"least\": %.3f, \"most\": %.3f}\n",
      layers, trace.events.size(), trace.uses.size(), trace.block_bytes.size(), share,
      static_cast<size_t>(schedule.moved()), static_cast<size_t>(schedule.bound),
      seconds[kRuns / 2], seconds[0], seconds[kRuns - 1]);
  return 0;
}
