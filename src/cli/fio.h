// Runs fio on a file with the load that disk_measure.h describes: the yardstick for our own queue.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/disk_measure.h"

namespace bottomless::cli {

struct Fio {
  std::filesystem::path program;
  std::string version;  // "fio-3.33"
};

// The one on PATH, if there is one that answers.
std::optional<Fio> find_fio();

// fio is handed the open file, which therefore needs no name, and ends when this process does.
Result<Rate> measure_with_fio(const Fio& fio, const WorkingFile& file, const Load& load);

// What fio printed, in its JSON format, as a rate.
Result<Rate> rate_from_fio(std::string_view output);

}  // namespace bottomless::cli
