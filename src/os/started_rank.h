// Which rank of a job this process is. Whoever started the job says so in the environment: torchrun (RANK, WORLD_SIZE, ...),
// Open MPI's mpirun (OMPI_COMM_WORLD_RANK, ...), and those of MPICH and Intel (PMI_RANK, ...).
// Thread-safety: reads the environment; nobody may change that at the same time.
#pragma once
#include <bottomless/result.h>

#include <optional>
#include <string>
#include <string_view>

namespace bottomless {

struct StartedRank {
  int rank = 0;
  int ranks = 1;
  std::optional<int> local_rank;  // among those of this machine
  std::optional<int> local_ranks;
};

// Nothing: started as a program by itself.
Result<std::optional<StartedRank>> started_rank();

// At least 1.
int ranks_of_this_machine();

// A number of 0 or more in the environment.
Result<std::optional<int>> number_in_environment(const char* variable);

// The text with this rank's numbers in place of {rank} and {local_rank}, so that one command line serves all ranks.
Result<std::string> with_rank(std::string_view text);

}  // namespace bottomless
