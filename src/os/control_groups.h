// The control groups that this process is in: where the limits that a container, a batch system or
// systemd set for it are written.
// Thread-safety: free functions without state.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless {

struct ControlGroup {
  enum class Version { one, two };
  Version version;
  std::string name;              // "/job/step"
  std::filesystem::path folder;  // where its files are looked for; it may not be there
};

// Of one controller, such as "memory" or "cpu": the process's own group and all above it, each of
// which may have a limit of its own. In a container the names may be of groups that only the host
// sees: what is mounted, the last in the list, is then the container's own. `root` is where /proc
// and /sys are looked for.
std::vector<ControlGroup> control_groups(std::string_view controller,
                                         const std::filesystem::path& root = "/");

}  // namespace bottomless
