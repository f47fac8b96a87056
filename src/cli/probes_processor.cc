#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "base/text_file.h"
#include "cli/probes.h"
#include "cli/python.h"
#include "optim/targets.h"
#include "os/control_groups.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

Finding probe_kernel() {
  utsname name{};
  uname(&name);
  return {"kernel", Verdict::good,
          std::string(name.sysname) + " " + name.release + " " + name.machine, ""};
}

Finding probe_model(const fs::path& root) {
  const std::string flags = std::string(" ") + field(root / "proc/cpuinfo", "flags") + " ";
  std::string simd;
  for (const char* wanted : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(std::string(" ") + wanted + " ") != std::string::npos)
      simd += std::string(simd.empty() ? "" : ", ") + wanted;
  }
  return {
      "processor", Verdict::good,
      field(root / "proc/cpuinfo", "model name") + ", SIMD: " + (simd.empty() ? "baseline" : simd),
      ""};
}

Finding probe_simd() {
  const char* name = std::getenv("BOTTOMLESS_SIMD");
  const Result<optim::Target> wanted = optim::wanted_target(name);
  if (!wanted.ok())
    return {"SIMD of the optimizers", Verdict::missing, wanted.error().message,
            "unset BOTTOMLESS_SIMD"};
  std::string names;
  for (const optim::Target target : optim::targets())
    names += (names.empty() ? "" : ", ") + std::string(target.name);
  const std::string value = std::string(wanted.value().name) + " of " + names;
  if (name == nullptr) return {"SIMD of the optimizers", Verdict::good, value, ""};
  return {"SIMD of the optimizers", Verdict::could_be_better, value + " (BOTTOMLESS_SIMD)",
          "unset BOTTOMLESS_SIMD: results have the same bits, and the first is the fastest"};
}

struct Quota {
  double cores;
  std::string set_by;
};

// The processor time that the least of the control groups grants, in cores.
std::optional<Quota> quota(const fs::path& root) {
  std::optional<Quota> least;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    double granted = 0;
    double period = 0;
    const char* file = "cpu.max";
    if (group.version == ControlGroup::Version::two) {
      std::ifstream(group.folder / file) >> granted >> period;  // "max" is no number, so none
    } else {
      file = "cpu.cfs_quota_us";
      std::ifstream(group.folder / file) >> granted;  // -1: none
      std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
    }
    if (granted <= 0 || period <= 0) continue;
    if (!least || granted / period < least->cores)
      least = {granted / period, std::string(file) + " of control group " + group.name};
  }
  return least;
}

long cores_of_affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return sysconf(_SC_NPROCESSORS_ONLN);  // more cores than a cpu_set_t can name
}

Finding probe_cores(const fs::path& root) {
  const long machine = sysconf(_SC_NPROCESSORS_ONLN);
  const long ours = cores_of_affinity();
  const std::optional<Quota> granted = quota(root);
  const long usable =
      granted ? std::clamp(static_cast<long>(std::floor(granted->cores)), 1L, ours) : ours;
  std::string value = std::to_string(usable) + " of " + std::to_string(machine) + " may be used";
  if (usable < ours) {
    value += " (" + granted->set_by + ")";
  } else if (ours < machine) {
    value += " (affinity)";
  }

  const char* variable = std::getenv("OMP_NUM_THREADS");
  const long chosen = variable != nullptr ? std::strtol(variable, nullptr, 10) : 0;
  const long threads = chosen > 0 ? chosen : ours;
  value += ", torch will use " + std::to_string(threads) +
           (chosen > 0     ? " (OMP_NUM_THREADS)"
            : threads == 1 ? " thread"
                           : " threads");
  if (threads == usable) return {"cores", Verdict::good, value, ""};
  return {
      "cores", Verdict::could_be_better, value,
      "OMP_NUM_THREADS=" + std::to_string(usable) +
          (threads > usable ? ", or threads will wait for each other" : " would use all of them")};
}

Findings probe_governor(const fs::path& root) {
  const std::string governor =
      first_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (governor.empty()) return {};  // a virtual machine has none
  if (governor != "powersave") return {{"processor speed", Verdict::good, governor, ""}};
  return {{"processor speed", Verdict::could_be_better, governor,
           "cpupower frequency-set -g performance"}};
}

Finding probe_accelerators(const fs::path& root) {
  std::string found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(root / "dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const bool nvidia = name.size() > 6 && name.starts_with("nvidia") &&
                        std::all_of(name.begin() + 6, name.end(),
                                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (nvidia || name == "kfd") found += (found.empty() ? "/dev/" : ", /dev/") + name;
  }
  if (found.empty()) return {"GPU", Verdict::good, "none; tensors of the CPU are managed", ""};
  return {"GPU", Verdict::could_be_better, found,
          "this version moves CPU tensors only: what a program puts on the GPU is neither counted "
          "nor moved, and must fit there"};
}

}  // namespace

Findings probe_processor(const fs::path& root) {
  Findings findings{probe_kernel(), probe_model(root), probe_simd(), probe_cores(root)};
  for (Finding& finding : probe_governor(root)) findings.push_back(std::move(finding));
  findings.push_back(probe_accelerators(root));
  return findings;
}

Finding probe_torch() {
  const auto python = find_python();
  if (!python)
    return {"torch", Verdict::missing, "no python3 found", "install Python 3.10 or newer"};
  const auto version = output_of(std::string("'") + python->string() +
                                 "' -c 'import torch; print(torch.__version__)' 2>/dev/null");
  if (!version)
    return {"torch", Verdict::missing, "not in " + python->string(), "pip install torch==2.13.0"};
  if (version->starts_with("2.13.0"))
    return {"torch", Verdict::good, *version + " in " + python->string(), ""};
  return {"torch", Verdict::could_be_better, *version + " in " + python->string(),
          "tested with 2.13.0 only"};
}

}  // namespace bottomless::cli
