#include <sys/resource.h>

#include <algorithm>

#include "base/text_file.h"
#include "cli/probes.h"
#include "memory/address_space.h"
#include "memory/granted.h"
#include "memory/heap.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

Finding probe_size(const fs::path& root) {
  const Grant grant = granted_memory(root);
  return {"memory", Verdict::good,
          format_bytes(byte_field(root / "proc/meminfo", "MemAvailable").value_or(0)) +
              " available of " +
              format_bytes(byte_field(root / "proc/meminfo", "MemTotal").value_or(0)) +
              "; --memory auto is " + format_bytes(automatic_limit(grant)) + " (" + grant.set_by +
              ")",
          ""};
}

Finding probe_control_groups(const fs::path& root) {
  const auto limit = control_group_limit(root);
  return {"memory limit of control groups", Verdict::good,
          limit ? format_bytes(limit->bytes) + " (" + limit->set_by + ")" : "none", ""};
}

Finding probe_swap(const fs::path& root) {
  const Bytes swap = byte_field(root / "proc/meminfo", "SwapTotal").value_or(0);
  if (swap == 0) return {"swap", Verdict::good, "none", ""};
  return {"swap", Verdict::could_be_better, format_bytes(swap),
          "keep --memory below what is available: past it the kernel swaps what Bottomless takes "
          "for memory, and everything slows down instead of failing"};
}

Finding probe_overcommit(const fs::path& root) {
  const std::string mode = first_line(root / "proc/sys/vm/overcommit_memory");
  if (mode != "2") return {"vm.overcommit_memory", Verdict::good, mode, ""};
  const Bytes limit = byte_field(root / "proc/meminfo", "CommitLimit").value_or(0);
  const Bytes taken = byte_field(root / "proc/meminfo", "Committed_AS").value_or(0);
  return {"vm.overcommit_memory", Verdict::could_be_better,
          "2: the kernel grants " + format_bytes(limit - std::min(limit, taken)) +
              " more in all, used or not",
          "sysctl vm.overcommit_memory=0, or keep --memory well below that"};
}

Finding probe_huge_pages(const fs::path& root) {
  const std::string setting = first_line(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (setting.empty()) {
    return {"huge pages", Verdict::could_be_better, "not in this kernel",
            "use a kernel with transparent huge pages: disks move small ones more slowly"};
  }
  if (setting.find("[never]") != std::string::npos) {
    return {"huge pages", Verdict::could_be_better, "switched off",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"};
  }
  return {"huge pages", Verdict::good,
          setting.substr(setting.find('[') + 1, setting.find(']') - setting.find('[') - 1), ""};
}

Finding probe_mappings(const fs::path& root) {
  const size_t count = granted_mappings(root);
  if (count >= kUsualMappings)
    return {"vm.max_map_count", Verdict::good, std::to_string(count), ""};
  return {"vm.max_map_count", Verdict::could_be_better, std::to_string(count),
          "sysctl vm.max_map_count=" + std::to_string(kUsualMappings) +
              "; until then memory is managed in larger pieces, which wastes some"};
}

Finding probe_limit(const char* topic, int resource, const char* flag) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return {topic, Verdict::good, "unlimited", ""};
  return {topic, Verdict::could_be_better, format_bytes(limit.rlim_cur),
          std::string("keep --memory well below it, or lift it: ulimit ") + flag + " unlimited"};
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

Findings probe_memory(const fs::path& root) {
  return {probe_size(root),
          probe_control_groups(root),
          probe_limit("limit of data (ulimit -d)", RLIMIT_DATA, "-d"),
          probe_limit("limit of addresses (ulimit -v)", RLIMIT_AS, "-v"),
          probe_swap(root),
          probe_overcommit(root),
          probe_huge_pages(root),
          probe_mappings(root),
          probe_moves()};
}

}  // namespace bottomless::cli
