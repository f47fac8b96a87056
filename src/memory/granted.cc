#include "memory/granted.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/text_file.h"
#include "memory/heap.h"
#include "os/control_groups.h"
#include "os/started_rank.h"

namespace bottomless {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

// A file that holds one number, or "max".
std::optional<Bytes> number_in(const fs::path& file) {
  const std::string line = first_line(file);
  if (line == "max") return kUnlimited;
  Bytes value = 0;
  const auto parsed = std::from_chars(line.data(), line.data() + line.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

Bytes less(Bytes from, Bytes what) { return from - std::min(from, what); }

void take_if_less(Grant& grant, Bytes bytes, std::string set_by) {
  if (bytes < grant.bytes) grant = {bytes, std::move(set_by)};
}

struct MemoryFiles {
  const char* limit;
  const char* usage;
  const char* idle;  // in memory.stat: pages of files that the kernel drops before anybody suffers
};
constexpr MemoryFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file"};
constexpr MemoryFiles kVersion2{"memory.max", "memory.current", "inactive_file"};
constexpr Bytes kUnlimitedInVersion1 = 1ull << 62;  // it has no "max", only a very large number

const MemoryFiles& files_of(const ControlGroup& group) {
  return group.version == ControlGroup::Version::one ? kVersion1 : kVersion2;
}

// The limit of one group and who set it; kUnlimited if none.
Grant limit_of(const ControlGroup& group) {
  const char* file = files_of(group).limit;
  const Bytes limit = number_in(group.folder / file).value_or(kUnlimited);
  return {limit < kUnlimitedInVersion1 ? limit : kUnlimited,
          std::string(file) + " of control group " + group.name};
}

void apply_control_groups(Grant& grant, const fs::path& root) {
  for (const ControlGroup& group : control_groups("memory", root)) {
    const Grant limit = limit_of(group);
    if (limit.bytes == kUnlimited) continue;
    const Bytes used = number_in(group.folder / files_of(group).usage).value_or(0);
    const Bytes idle = byte_field(group.folder / "memory.stat", files_of(group).idle).value_or(0);
    take_if_less(grant, less(limit.bytes, less(used, idle)), limit.set_by);
  }
}

void apply_resource_limit(Grant& grant, int resource, const char* name, Bytes used) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  if (limit.rlim_cur != RLIM_INFINITY) take_if_less(grant, less(limit.rlim_cur, used), name);
}

}  // namespace

Grant granted_memory(const fs::path& root) {
  Grant grant{byte_field(root / "proc/meminfo", "MemAvailable").value_or(kUnlimited),
              "free memory of the machine"};
  apply_control_groups(grant, root);
  const fs::path status = root / "proc/self/status";
  apply_resource_limit(grant, RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)",
                       byte_field(status, "VmData").value_or(0));
  apply_resource_limit(grant, RLIMIT_AS, "RLIMIT_AS (ulimit -v)",
                       byte_field(status, "VmSize").value_or(0));
  return grant;
}

std::optional<Grant> control_group_limit(const fs::path& root) {
  Grant least{kUnlimited, ""};
  for (const ControlGroup& group : control_groups("memory", root)) {
    Grant limit = limit_of(group);
    take_if_less(least, limit.bytes, std::move(limit.set_by));
  }
  if (least.bytes == kUnlimited) return std::nullopt;
  return least;
}

Bytes automatic_limit(const Grant& grant) {
  return grant.bytes / 5 * 4 / static_cast<Bytes>(ranks_of_this_machine());
}

size_t granted_mappings(const std::filesystem::path& root) {
  return number_in(root / "proc/sys/vm/max_map_count").value_or(kUsualMappings);
}

}  // namespace bottomless
