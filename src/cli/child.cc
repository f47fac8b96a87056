#include "cli/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/errno_error.h"
#include "base/unique_fd.h"

namespace bottomless::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> environment(std::vector<std::string> variables) {
  const size_t own = variables.size();
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    if (std::none_of(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(own),
                     [&](const std::string& ours) { return ours.starts_with(name); }))
      variables.emplace_back(text);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// In the child: only calls that are safe after a fork beside other threads.
[[noreturn]] void become(char* const* command, char* const* variables, int keep_open, int output,
                         pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // programs then end their own children as well
  if (getppid() != parent) _exit(1);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  if (keep_open >= 0) fcntl(keep_open, F_SETFD, 0);
  execve(command[0], command, variables);
  _exit(127);
}

// Whether something can be read (or the other end is closed) before that time.
bool readable_before(int fd, std::optional<Clock::time_point> deadline) {
  for (;;) {
    int left_ms = -1;
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
      left_ms = static_cast<int>(std::max<int64_t>(left.count(), 0));
    }
    pollfd what{fd, POLLIN, 0};
    const int ready = poll(&what, 1, left_ms);
    if (ready > 0) return true;
    if (ready == 0) return false;
  }
}

// All until the other end is closed; nothing if that takes too long.
std::optional<std::string> read_all(int fd, std::optional<Clock::time_point> deadline) {
  std::string text;
  char part[4096];
  while (readable_before(fd, deadline)) {
    const ssize_t got = read(fd, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part, static_cast<size_t>(got));
  }
  return std::nullopt;
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string last_line(std::string text) {
  text.resize(text.find_last_not_of('\n') + 1);  // npos + 1 is 0
  return text.substr(text.rfind('\n') + 1);
}

}  // namespace

Result<std::string> output_of(Child child) {
  const std::string& program = child.command.front();
  const std::string attempt = "run " + program.substr(program.rfind('/') + 1);
  const std::vector<char*> arguments = pointers(child.command);
  std::vector<std::string> variables = environment(std::move(child.variables));
  const std::vector<char*> variable_pointers = pointers(variables);
  std::optional<Clock::time_point> deadline;
  if (child.deadline) deadline = Clock::now() + *child.deadline;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error(errno, attempt + ": make a pipe");
  const UniqueFd from_child(ends[0]);
  UniqueFd to_us(ends[1]);
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process < 0) return errno_error(errno, attempt);
  if (process == 0) {
    become(arguments.data(), variable_pointers.data(), child.keep_open, to_us.get(), parent);
  }
  to_us = UniqueFd();
  std::optional<std::string> text = read_all(from_child.get(), deadline);
  if (!text) kill(process, SIGKILL);
  const int status = wait_for(process);
  if (!text) {
    return Error{Code::io, attempt + ": it took longer than " +
                               std::to_string(child.deadline->count()) + " ms and was ended"};
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return std::move(*text);
  return Error{Code::io, attempt + ": it failed with '" + last_line(std::move(*text)) + "'"};
}

}  // namespace bottomless::cli
