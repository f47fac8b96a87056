// What `bottomless doctor` looks at. Each probe answers with findings: what there is, and how to make
// it better. `root` is where /proc, /sys and /dev are looked for.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <string>
#include <vector>

#include "io/disk_measure.h"

namespace bottomless::cli {

enum class Verdict { good, could_be_better, missing };

struct Finding {
  std::string topic;  // "io_uring"
  Verdict verdict;
  std::string value;   // what was found
  std::string advice;  // how to make it better; empty when good
};
using Findings = std::vector<Finding>;

// Kernel, processor, what the optimizers use of it (BOTTOMLESS_SIMD), cores that may be used, and accelerators, which this version
// does not manage.
Findings probe_processor(const std::filesystem::path& root = "/");

// How much memory there is, who limits it, and whether the kernel will move it as a run needs.
Findings probe_memory(const std::filesystem::path& root = "/");

Findings probe_transfers(const std::filesystem::path& root = "/");

// One directory for --disk. Writes and reads a scratch file there for about a second.
Findings probe_directory(const std::filesystem::path& directory,
                         const std::filesystem::path& root = "/");
Finding judge_speed(const std::string& topic, const Rate& writing, const Rate& reading);

Finding probe_torch();

// In what precision a model computes fastest, as the Python that programs are started with measures
// it; takes as long as loading torch. `said` is what `python -m bottomless.precision` printed.
Findings probe_precision();
Finding judge_precision(const Result<std::string>& said, const std::filesystem::path& python);

}  // namespace bottomless::cli
