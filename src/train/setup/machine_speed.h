// What this machine reaches: for the estimate before a run, and for the share of it that the run reaches. The disks
// are measured each time, in about a second; the processor once, in less than a second where nothing else needs it,
// and kept in the user's cache directory.
// Thread-safety: free functions; nothing else should run meanwhile.
#pragma once
#include <bottomless/result.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/machine_cache.h"
#include "plan/run_estimate.h"
#include "plan/speed_measurement.h"

namespace bottomless::train {

// Operations a second in products of matrices of the size that training has; under a limit that leaves little room,
// small ones.
class ProcessorSpeed {
 public:
  ProcessorSpeed(at::ScalarType dtype, Bytes memory_limit,
                 MachineCache cache = MachineCache::of_user());

  // From the cache, if it was measured in a quiet moment.
  SpeedRange find_or_measure() const;
  // A step has reached so many: then the processor can do that much, whatever was measured.
  void reached(double flops) const;

 private:
  SpeedRange known() const;
  void keep(const SpeedRange& speed) const;

  const at::ScalarType dtype_;
  const int64_t width_;
  const MachineCache cache_;
  const std::string key_;
};

// The rates of all the directories together, and how much is free there. `memory_limit` is what may be used.
Result<RunMachine> measure_machine(const std::vector<std::filesystem::path>& disk,
                                   const ProcessorSpeed& processor, Bytes memory_limit);

}  // namespace bottomless::train
