#include "os/control_groups.h"

#include <fstream>

namespace bottomless {
namespace {

namespace fs = std::filesystem;

void add_with_parents(std::vector<ControlGroup>& groups, ControlGroup::Version version,
                      const fs::path& mount, fs::path group) {
  for (;; group = group.parent_path()) {
    groups.push_back({version, group.string(), mount / group.relative_path()});
    if (group == group.parent_path()) return;
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::vector<ControlGroup> groups;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // "0::/path" or "7:cpu,memory:/path"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") add_with_parents(groups, ControlGroup::Version::two, mounts, group);
    if (controllers.find("," + std::string(controller) + ",") != std::string::npos)
      add_with_parents(groups, ControlGroup::Version::one, mounts / controller, group);
  }
  return groups;
}

}  // namespace bottomless
