// How much memory this process may still take: the least of what the machine has free and what its
// environment allows. Swapping and being killed both begin beyond it.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>

#include <filesystem>
#include <optional>
#include <string>

namespace bottomless {

struct Grant {
  Bytes bytes = 0;
  std::string set_by;  // for a person: "free memory of the machine", "memory.max of /user.slice"
};

// `root` is where /proc and /sys are looked for.
Grant granted_memory(const std::filesystem::path& root = "/");

// How many mappings the kernel allows this process (vm.max_map_count).
size_t granted_mappings(const std::filesystem::path& root = "/");

// The least that a control group of this process may hold in all, if any of them is limited.
std::optional<Grant> control_group_limit(const std::filesystem::path& root = "/");

// What --memory auto stands for: most of the grant, which the ranks of this machine share. The rest is for what is not a
// tensor, such as the interpreter, libraries and their workspaces.
Bytes automatic_limit(const Grant& grant);

}  // namespace bottomless
