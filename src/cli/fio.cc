#include "cli/fio.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/errno_error.h"
#include "cli/python.h"
#include "io/unique_fd.h"

namespace bottomless::cli {
namespace {

const char* rw_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::read:
      return "randread";
    case Pattern::write:
      return "randwrite";
    case Pattern::mixed:
      return "randrw";
  }
  return "";
}

// The last options spare fio work that our own queue does not do either: it keeps no map of the
// blocks it has visited, leaves its buffers as they are, and takes no time of single requests.
std::vector<std::string> arguments(const Fio& fio, const WorkingFile& file, const Load& load) {
  const long milliseconds = std::max(1L, std::lround(load.seconds * 1000));
  return {fio.program.string(),
          "--name=bottomless",
          "--filename=/proc/self/fd/" + std::to_string(file.fd()),
          "--allow_file_create=0",
          "--size=" + std::to_string(file.written()),
          std::string("--rw=") + rw_of(load.pattern),
          "--rwmixread=50",
          "--bs=" + std::to_string(load.size),
          "--iodepth=" + std::to_string(load.depth),
          std::string("--ioengine=") + (file.without_uring() ? "psync" : "io_uring"),
          std::string("--direct=") + (file.caching() == Caching::direct ? "1" : "0"),
          "--time_based",
          "--runtime=" + std::to_string(milliseconds) + "ms",
          "--randrepeat=0",
          "--output-format=json",
          "--norandommap=1",
          "--scramble_buffers=0",
          "--gtod_reduce=1"};
}

// Our memory is made of huge pages, which a disk moves in fewer and longer pieces: without them fio
// reaches about half the bandwidth on some. glibc gives them to whatever fio allocates, and touches
// them at once, so that no page is faulted in while the clock runs.
constexpr const char* kHugePages =
    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1099511627776:"
    "glibc.malloc.perturb=1";

std::vector<std::string> environment() {
  std::vector<std::string> variables{kHugePages};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("GLIBC_TUNABLES=")) variables.push_back(*variable);
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
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // fio then ends its own children as well
  if (getppid() != parent) _exit(1);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  fcntl(keep_open, F_SETFD, 0);
  execve(command[0], command, variables);
  _exit(127);
}

std::string read_all(int fd) {
  std::string text;
  char part[4096];
  for (;;) {
    const ssize_t got = read(fd, part, sizeof part);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(part, static_cast<size_t>(got));
  }
}

// What the command printed, on both its streams, if it ended well.
Result<std::string> output_with_file(std::vector<std::string> command, int keep_open) {
  const std::vector<char*> arguments = pointers(command);
  std::vector<std::string> variables = environment();
  const std::vector<char*> variable_pointers = pointers(variables);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return errno_error(errno, "make a pipe for fio");
  const UniqueFd from_fio(ends[0]);
  UniqueFd to_us(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return errno_error(errno, "start fio");
  if (child == 0) {
    become(arguments.data(), variable_pointers.data(), keep_open, to_us.get(), parent);
  }
  to_us = UniqueFd();
  std::string text = read_all(from_fio.get());
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
  const size_t last = text.find_last_not_of('\n');
  text.resize(last == std::string::npos ? 0 : last + 1);
  return Error{Code::io, "run fio: it failed with '" + text.substr(text.rfind('\n') + 1) +
                             "'; leave it out with --no-fio"};
}

}  // namespace

std::optional<Fio> find_fio() {
  const auto program = find_program("fio");
  if (!program) return std::nullopt;
  const auto version = output_of(std::string("'") + program->string() + "' --version 2>/dev/null");
  if (!version) return std::nullopt;
  return Fio{*program, *version};
}

Result<Rate> measure_with_fio(const Fio& fio, const WorkingFile& file, const Load& load) {
  const Result<std::string> output = output_with_file(arguments(fio, file, load), file.fd());
  if (!output.ok()) return output.error();
  return rate_from_fio(output.value());
}

Result<Rate> rate_from_fio(std::string_view output) {
  const Error unknown{Code::unsupported,
                      "read what fio printed: it is not the JSON that fio 3 prints; leave it out "
                      "with --no-fio"};
  const size_t begin = output.find('{');  // warnings may stand before
  if (begin == std::string_view::npos) return unknown;
  const auto report = nlohmann::json::parse(output.substr(begin), nullptr, false);
  try {
    const nlohmann::json& job = report.at("jobs").at(0);
    Rate rate;
    for (const char* direction : {"read", "write"}) {
      rate.bytes += job.at(direction).at("io_bytes").get<Bytes>();
      rate.seconds = std::max(rate.seconds, job.at(direction).at("runtime").get<double>() / 1000);
    }
    const double percent = job.at("usr_cpu").get<double>() + job.at("sys_cpu").get<double>();
    rate.cpu_seconds = percent / 100 * job.at("job_runtime").get<double>() / 1000;
    if (rate.bytes == 0 || rate.seconds <= 0) return unknown;
    return rate;
  } catch (const nlohmann::json::exception&) {
    return unknown;
  }
}

}  // namespace bottomless::cli
