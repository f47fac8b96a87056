// What this machine reaches, measured in about two seconds: for the estimate before a run, and for the share of it that
// the run reaches.
// Thread-safety: free functions; nothing else should run meanwhile.
#pragma once
#include <bottomless/result.h>
#include <torch/types.h>

#include <filesystem>
#include <vector>

#include "plan/run_estimate.h"

namespace bottomless::train {

// Operations a second in products of matrices of the size that training has.
// Under a limit that leaves little room, with small matrices.
double measure_flops(at::ScalarType dtype, Bytes memory_limit);

// The rates of all the directories together, and how much is free there. `memory_limit` is what may be used.
Result<RunMachine> measure_machine(const std::vector<std::filesystem::path>& disk,
                                   at::ScalarType dtype, Bytes memory_limit);

}  // namespace bottomless::train
