#include "memory/granted.h"

#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "memory/heap.h"

namespace bottomless {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kUnlimited = std::numeric_limits<Bytes>::max();

std::optional<Bytes> number(std::string_view text) {
  Bytes value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

// A file that holds one number, or "max".
std::optional<Bytes> number_in(const fs::path& file) {
  std::string line;
  if (!std::getline(std::ifstream(file), line)) return std::nullopt;
  return line == "max" ? kUnlimited : number(line);
}

// The number behind `key` in a file of lines such as "key 123" or "Key:   123 kB".
Bytes field(const fs::path& file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find_first_of("0123456789", key.size());
    if (at == std::string::npos) return 0;
    const Bytes unit = line.ends_with(" kB") ? 1_KiB : 1;
    return number(std::string_view(line).substr(at)).value_or(0) * unit;
  }
  return 0;
}

Bytes less(Bytes from, Bytes what) { return from - std::min(from, what); }

void take_if_less(Grant& grant, Bytes bytes, std::string set_by) {
  if (bytes < grant.bytes) grant = {bytes, std::move(set_by)};
}

struct Hierarchy {
  const char* mount;
  const char* limit;
  const char* usage;
  const char* idle;  // in memory.stat: pages of files that the kernel drops before anybody suffers
};
constexpr Hierarchy kVersion1{"sys/fs/cgroup/memory", "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file"};
constexpr Hierarchy kVersion2{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

// A control group and all above it, each with a limit of its own. In a container the path may name
// groups that only the host sees: what is mounted is then the container's own.
void apply_groups(Grant& grant, const fs::path& root, const Hierarchy& hierarchy, fs::path group) {
  for (;; group = group.parent_path()) {
    const fs::path folder = root / hierarchy.mount / group.relative_path();
    if (const auto limit = number_in(folder / hierarchy.limit); limit && *limit < kUnlimited) {
      const Bytes used = number_in(folder / hierarchy.usage).value_or(0);
      const Bytes idle = field(folder / "memory.stat", hierarchy.idle);
      take_if_less(grant, less(*limit, less(used, idle)),
                   std::string(hierarchy.limit) + " of control group " + group.string());
    }
    if (group == group.parent_path()) return;
  }
}

void apply_control_groups(Grant& grant, const fs::path& root) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // "0::/path" or "7:cpu,memory:/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    if (controllers == ",,") apply_groups(grant, root, kVersion2, line.substr(second + 1));
    if (controllers.find(",memory,") != std::string::npos)
      apply_groups(grant, root, kVersion1, line.substr(second + 1));
  }
}

void apply_resource_limit(Grant& grant, int resource, const char* name, Bytes used) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return;
  if (limit.rlim_cur != RLIM_INFINITY) take_if_less(grant, less(limit.rlim_cur, used), name);
}

}  // namespace

Grant granted_memory(const fs::path& root) {
  Grant grant{field(root / "proc/meminfo", "MemAvailable"), "free memory of the machine"};
  if (grant.bytes == 0) grant.bytes = kUnlimited;
  apply_control_groups(grant, root);
  const fs::path status = root / "proc/self/status";
  apply_resource_limit(grant, RLIMIT_DATA, "RLIMIT_DATA (ulimit -d)", field(status, "VmData"));
  apply_resource_limit(grant, RLIMIT_AS, "RLIMIT_AS (ulimit -v)", field(status, "VmSize"));
  return grant;
}

Bytes automatic_limit(const Grant& grant) { return grant.bytes / 5 * 4; }

size_t granted_mappings(const std::filesystem::path& root) {
  return number_in(root / "proc/sys/vm/max_map_count").value_or(kUsualMappings);
}

}  // namespace bottomless
