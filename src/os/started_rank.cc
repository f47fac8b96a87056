#include "os/started_rank.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace bottomless {
namespace {

struct Variables {
  const char* rank;
  const char* ranks;
  const char* local_rank;
  const char* local_ranks;
};
constexpr Variables kStarters[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

Error unknown(std::string_view text, std::string_view placeholder, const std::string& why) {
  return {Code::invalid_argument, "put a number in place of " + std::string(placeholder) + " in '" +
                                      std::string(text) + "': " + why +
                                      "; start the program by torchrun or mpirun, or leave " +
                                      std::string(placeholder) + " out"};
}

}  // namespace

Result<std::optional<int>> number_in_environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::optional<int>();
  const std::string_view text = value;
  int number = -1;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || at != text.data() + text.size() || number < 0) {
    return Error{Code::invalid_argument, std::string(variable) + "='" + value +
                                             "' in the environment is not a number of 0 or more"};
  }
  return std::optional(number);
}

Result<std::optional<StartedRank>> started_rank() {
  for (const Variables& variables : kStarters) {
    std::optional<int> numbers[4];
    int at = 0;
    for (const char* name :
         {variables.rank, variables.ranks, variables.local_rank, variables.local_ranks}) {
      Result<std::optional<int>> number = number_in_environment(name);
      if (!number.ok()) return std::move(number).error();
      numbers[at++] = number.value();
    }
    const auto& [rank, ranks, local_rank, local_ranks] = numbers;
    if (!rank || !ranks) continue;
    if (*rank >= *ranks) {
      return Error{Code::invalid_argument, std::string(variables.rank) + "=" +
                                               std::to_string(*rank) + " of " + variables.ranks +
                                               "=" + std::to_string(*ranks) +
                                               " in the environment: ranks count from 0"};
    }
    return std::optional(StartedRank{*rank, *ranks, local_rank, local_ranks});
  }
  return std::optional<StartedRank>();
}

int ranks_of_this_machine() {
  const Result<std::optional<StartedRank>> started = started_rank();
  return started.ok() && started.value() ? std::max(1, started.value()->local_ranks.value_or(1))
                                         : 1;
}

Result<std::string> with_rank(std::string_view text) {
  constexpr std::string_view kRank = "{rank}", kLocalRank = "{local_rank}";
  std::string result(text);
  for (const std::string_view placeholder : {kRank, kLocalRank}) {
    for (size_t at = result.find(placeholder); at != std::string::npos;
         at = result.find(placeholder, at)) {
      const Result<std::optional<StartedRank>> started = started_rank();
      if (!started.ok()) return unknown(text, placeholder, started.error().message);
      if (!started.value())
        return unknown(text, placeholder, "the environment does not say which rank this is");
      const StartedRank& here = *started.value();
      if (placeholder == kLocalRank && !here.local_rank)
        return unknown(text, placeholder,
                       "the environment does not say which of this machine's ranks this is");
      const int number = placeholder == kRank ? here.rank : *here.local_rank;
      result.replace(at, placeholder.size(), std::to_string(number));
    }
  }
  return result;
}

}  // namespace bottomless
