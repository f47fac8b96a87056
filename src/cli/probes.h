// What `bottomless doctor` looks at, one finding at a time.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace bottomless::cli {

enum class Verdict { good, could_be_better, missing };

struct Finding {
  std::string topic;  // "io_uring"
  Verdict verdict;
  std::string value;   // what was found
  std::string advice;  // how to make it better; empty when good
};

std::vector<Finding> probe_machine();
std::vector<Finding> probe_directory(const std::filesystem::path& directory);
Finding probe_torch();

}  // namespace bottomless::cli
