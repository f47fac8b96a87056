#include "support/process.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/check.h"

namespace bottomless {
namespace {

// The kernel checks the protection of the pages as it does for any system call, but answers instead of signalling.
bool copy(bool into_remote, void* local, void* remote, size_t bytes) {
  const iovec here{local, bytes};
  const iovec there{remote, bytes};
  const ssize_t moved = into_remote ? ::process_vm_writev(::getpid(), &here, 1, &there, 1, 0)
                                    : ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
  BOTTOMLESS_CHECK(moved >= 0 || errno == EFAULT,
                   "this kernel forbids process_vm_readv on oneself");
  return moved == static_cast<ssize_t>(bytes);
}

}  // namespace

bool is_readable(const void* address) {
  char byte = 0;
  return copy(false, &byte, const_cast<void*>(address), 1);
}

bool is_writable(void* address) {
  char byte = 0;
  return copy(false, &byte, address, 1) && copy(true, &byte, address, 1);
}

bool try_copy_out(std::span<std::byte> into, const void* from) {
  return copy(false, into.data(), const_cast<void*>(from), into.size());
}

bool try_copy_in(void* to, std::span<const std::byte> from) {
  return copy(true, const_cast<std::byte*>(from.data()), to, from.size());
}

Bytes memory_field(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoull(line.substr(name.size() + 1)) * 1024;
  }
  BOTTOMLESS_CHECK(false, "/proc/self/status lacks a field");
  return 0;
}

size_t mappings_in(const void* from, Bytes bytes) {
  const auto low = reinterpret_cast<uintptr_t>(from);
  const auto high = low + bytes;
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    size_t used = 0;
    const uint64_t start = std::stoull(line, &used, 16);
    const uint64_t end = std::stoull(line.substr(used + 1), nullptr, 16);
    if (start < high && end > low) ++count;
  }
  return count;
}

std::string in_child(const std::function<std::string()>& body) {
  int ends[2];
  BOTTOMLESS_CHECK(::pipe(ends) == 0, "no pipe");
  const pid_t child = ::fork();
  BOTTOMLESS_CHECK(child >= 0, "no child process");
  if (child == 0) {
    ::close(ends[0]);
    const std::string answer = body();
    const ssize_t written = ::write(ends[1], answer.data(), answer.size());
    ::_exit(written == static_cast<ssize_t>(answer.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string answer;
  char part[512];
  for (ssize_t got = 0; (got = ::read(ends[0], part, sizeof part)) > 0;)
    answer.append(part, static_cast<size_t>(got));
  ::close(ends[0]);
  int status = 0;
  BOTTOMLESS_CHECK(::waitpid(child, &status, 0) == child, "the child was lost");
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status)) + " " + answer;
  if (WEXITSTATUS(status) != 0) return "exit " + std::to_string(WEXITSTATUS(status)) + " " + answer;
  return answer;
}

std::string mount_privately(const std::string& type, const std::string& options,
                            const std::string& directory) {
  if (::unshare(CLONE_NEWNS) != 0)
    return std::string("no mount namespace of its own: ") + std::strerror(errno);
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  if (::mount("none", directory.c_str(), type.c_str(), 0, options.c_str()) != 0) {
    return "no " + type + " could be mounted: " + std::strerror(errno);
  }
  return {};
}

}  // namespace bottomless
