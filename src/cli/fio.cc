#include "cli/fio.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/child.h"
#include "cli/python.h"

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

}  // namespace

std::optional<Fio> find_fio() {
  const auto program = find_program("fio");
  if (!program) return std::nullopt;
  const auto version = output_of(std::string("'") + program->string() + "' --version 2>/dev/null");
  if (!version) return std::nullopt;
  return Fio{*program, *version};
}

Result<Rate> measure_with_fio(const Fio& fio, const WorkingFile& file, const Load& load) {
  const Result<std::string> output = output_of(Child{
      .command = arguments(fio, file, load), .variables = {kHugePages}, .keep_open = file.fd()});
  if (!output.ok()) {
    return Error{output.error().code, output.error().message + "; leave it out with --no-fio"};
  }
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
