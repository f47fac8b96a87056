#include "cli/probes.h"

#include <bottomless/bytes.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/text_file.h"
#include "cli/python.h"
#include "io/scratch_file.h"
#include "io/transfers.h"
#include "memory/address_space.h"
#include "memory/granted.h"

namespace bottomless::cli {
namespace {

Finding probe_kernel() {
  utsname name{};
  uname(&name);
  return {"kernel", Verdict::good,
          std::string(name.sysname) + " " + name.release + " " + name.machine, ""};
}

Finding probe_processor() {
  const std::string flags = " " + field("/proc/cpuinfo", "flags") + " ";
  std::string simd;
  for (const char* wanted : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}) {
    if (flags.find(std::string(" ") + wanted + " ") != std::string::npos)
      simd += std::string(simd.empty() ? "" : ", ") + wanted;
  }
  const std::string cores = std::to_string(std::thread::hardware_concurrency());
  return {"processor", Verdict::good,
          field("/proc/cpuinfo", "model name") + ", " + cores +
              " cores, SIMD: " + (simd.empty() ? "baseline" : simd),
          ""};
}

Finding probe_memory() {
  const auto kib = [](const std::string& key) {
    return std::strtoull(field("/proc/meminfo", key).c_str(), nullptr, 10);
  };
  const Grant grant = granted_memory();
  return {"memory", Verdict::good,
          format_bytes(kib("MemAvailable") * 1024) + " available of " +
              format_bytes(kib("MemTotal") * 1024) + "; --memory auto is " +
              format_bytes(automatic_limit(grant)) + " (" + grant.set_by + ")",
          ""};
}

Finding probe_huge_pages() {
  const std::string setting = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (setting.empty())
    return {"huge pages", Verdict::could_be_better, "not in this kernel",
            "use a kernel with transparent huge pages"};
  if (setting.find("[never]") != std::string::npos) {
    return {"huge pages", Verdict::could_be_better, "switched off",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
  }
  return {"huge pages", Verdict::good,
          setting.substr(setting.find('[') + 1, setting.find(']') - setting.find('[') - 1), ""};
}

Finding probe_mappings() {
  const std::string count = first_line("/proc/sys/vm/max_map_count");
  if (std::strtoul(count.c_str(), nullptr, 10) >= 65530)
    return {"vm.max_map_count", Verdict::good, count, ""};
  return {"vm.max_map_count", Verdict::could_be_better, count, "sysctl vm.max_map_count=65530"};
}

Finding probe_limit(const char* topic, int resource, const char* flag, Verdict if_limited) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {topic, Verdict::good, "unlimited", ""};
  return {topic, if_limited, format_bytes(limit.rlim_cur),
          if_limited == Verdict::good ? ""
                                      : "keep --memory well below it, or lift it: ulimit " +
                                            std::string(flag) + " unlimited"};
}

Finding probe_uring() {
  const auto ring = make_uring_transfers(32);
  if (ring.ok()) return {"io_uring", Verdict::good, "permitted", ""};
  return {"io_uring", Verdict::could_be_better, ring.error().message,
          "permit it (kernel.io_uring_disabled=0, or the container's seccomp profile); until then "
          "transfers go one at a time"};
}

Finding probe_moves() {
  Result<AddressSpace> space = AddressSpace::reserve(8_MiB, 2_MiB);
  if (!space.ok())
    return {"address space", Verdict::missing, space.error().message, "lift ulimit -v"};
  std::byte* from = space.value().base();
  if (const auto made = space.value().create(from, 2_MiB, true); !made.ok()) {
    return {"moving frames", Verdict::missing, made.error().message, "lift ulimit -d"};
  }
  from[0] = std::byte{1};
  space.value().move(from, from + 4_MiB, 2_MiB);
  const bool kept = from[4_MiB] == std::byte{1};
  return {"moving frames", kept ? Verdict::good : Verdict::missing,
          kept ? "mremap keeps pages" : "content lost", kept ? "" : "use Linux 5.13 or newer"};
}

}  // namespace

std::vector<Finding> probe_machine() {
  return {probe_kernel(),
          probe_processor(),
          probe_memory(),
          probe_huge_pages(),
          probe_mappings(),
          probe_limit("limit of data (ulimit -d)", RLIMIT_DATA, "-d", Verdict::could_be_better),
          probe_limit("limit of addresses (ulimit -v)", RLIMIT_AS, "-v", Verdict::could_be_better),
          probe_limit("limit of locked memory (ulimit -l)", RLIMIT_MEMLOCK, "-l", Verdict::good),
          probe_uring(),
          probe_moves()};
}

std::vector<Finding> probe_directory(const std::filesystem::path& directory) {
  const std::string topic = "disk " + directory.string();
  const Result<ScratchFile> file = ScratchFile::open(directory);
  if (!file.ok())
    return {{topic, Verdict::missing, file.error().message, "name a directory you can write to"}};
  std::vector<Finding> findings;
  struct statvfs space {};
  statvfs(directory.c_str(), &space);
  findings.push_back(
      {topic, Verdict::good, format_bytes(space.f_bavail * space.f_frsize) + " free", ""});
  if (file.value().caching() == Caching::direct) {
    findings.push_back({topic + " O_DIRECT", Verdict::good, "supported", ""});
  } else {
    findings.push_back({topic + " O_DIRECT", Verdict::could_be_better, "refused by the file system",
                        "use ext4 or xfs on NVMe; transfers go through the page cache until then"});
  }
  return findings;
}

Finding probe_torch() {
  const auto python = find_python();
  if (!python)
    return {"torch", Verdict::missing, "no python3 found", "install Python 3.10 or newer"};
  const auto version = output_of("'" + python->string() +
                                 "' -c 'import torch; print(torch.__version__)' 2>/dev/null");
  if (!version)
    return {"torch", Verdict::missing, "not in " + python->string(), "pip install torch==2.13.0"};
  if (version->starts_with("2.13.0"))
    return {"torch", Verdict::good, *version + " in " + python->string(), ""};
  return {"torch", Verdict::could_be_better, *version + " in " + python->string(),
          "tested with 2.13.0 only"};
}

}  // namespace bottomless::cli
