// What the kernel says about this process, and ways to ask it without dying: probes of an address, a child process.
// Thread-safety: free functions without state, except in_child(), which forks: call it while no other thread runs.
#pragma once
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace bottomless {

// What could be done with the byte at `address`; never faults, never changes it.
bool is_readable(const void* address);
bool is_writable(void* address);

// Copies that stop at an inaccessible byte instead of faulting; true if all was copied.
bool try_copy_out(std::span<std::byte> into, const void* from);
bool try_copy_in(void* to, std::span<const std::byte> from);

// A field of /proc/self/status in bytes, such as "VmData".
Bytes memory_field(const std::string& name);

// Kernel mappings that overlap [from, from + bytes).
size_t mappings_in(const void* from, Bytes bytes);

// Runs `body` in a forked child. Returns what it returned, or how the child died ("signal 6").
std::string in_child(const std::function<std::string()>& body);

// For in_child(): this child's own view of the mounts, with a new file system at `directory`. An empty string, or why
// it could not be done (no right to mount).
std::string mount_privately(const std::string& type, const std::string& options,
                            const std::string& directory);

}  // namespace bottomless
