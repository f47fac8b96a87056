// What `bottomless bench disk` found, for people and for programs.
// Thread-safety: free functions without state.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/disk_measure.h"

namespace bottomless::cli {

// One load on one set of directories, measured in several rounds.
struct BenchRow {
  std::vector<std::string> directories;
  Load load;
  std::vector<Rate> ours;  // one for each round
  std::vector<Rate> fio;   // empty: not measured
};

struct BenchReport {
  Bytes bytes = 0;     // of the file in each directory
  std::string engine;  // how our own queue transfers: "O_DIRECT, io_uring"
  std::string fio;     // its version; empty: not measured
  std::vector<BenchRow> rows;
};

// Both give medians over the rounds, and ratios of medians.
std::string table_of(const BenchReport& report);
nlohmann::json json_of(const BenchReport& report);

}  // namespace bottomless::cli
