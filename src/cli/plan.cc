// `bottomless plan`: explains a recorded step, or one of a program that it lets run for a few: the first
// makes the model and its states, the next shows what repeats, and from then on steps go as planned.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cli/python.h"
#include "cli/verbs.h"
#include "io/disk_measure.h"
#include "report/explain.h"
#include "report/page.h"
#include "report/trace_file.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSteps = "4";

struct PlanOptions {
  std::vector<std::string> program;  // or the file with the trace
  std::string memory;
  std::string disk;
  std::string report;
  bool explain = false;
  bool json = false;
};

Result<StepRecord> record_in(const fs::path& trace) {
  std::ifstream file(trace, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return Error{Code::invalid_argument, "'" + trace.string() + "' cannot be read"};
  Result<StepRecord> record = read_trace(text.str());
  if (!record.ok()) {
    return Error{Code::invalid_argument, "'" + trace.string() + "': " + record.error().message};
  }
  return record;
}

Error unfinished() {
  return {Code::invalid_argument,
          "the program did not get as far as the end of its step " + std::string(kSteps)};
}

// What the program prints is not what we print: it goes to standard error.
Result<void> run_and_wait(const std::vector<std::string>& command) {
  const pid_t child = fork();
  if (child < 0) return Error{Code::no_memory, "no process can be started"};
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    replace_process(fs::read_symlink("/proc/self/exe"), command);
    _exit(kFailed);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kDone) return {};
  return unfinished();
}

// A step that moved nothing does not tell how fast the disk is.
Result<void> measure_disk(const std::string& directory, StepRecord& record) {
  constexpr Bytes kFile = 256_MiB;
  constexpr double kSeconds = 1;
  Result<WorkingFile> file = WorkingFile::open(directory, kFile);
  if (!file.ok()) return std::move(file).error();
  if (Result<void> filled = file.value().fill(kSeconds); !filled.ok()) return filled;
  const Load load{Pattern::mixed, 4_MiB, 8, kSeconds};
  const Result<Rate> rate = measure({&file.value(), 1}, load);
  if (!rate.ok()) return rate.error();
  record.rates.both = rate.value().bytes_per_second();
  return {};
}

Result<StepRecord> record_of_program(const PlanOptions& options) {
  std::error_code missing;
  const fs::path directory = fs::temp_directory_path(missing);
  std::string trace =
      ((missing ? fs::path("/tmp") : directory) / "bottomless-plan-XXXXXX").string();
  const int file = mkstemp(trace.data());
  if (file < 0) return Error{Code::io, "no file can be made in '" + trace + "'"};
  close(file);
  std::vector<std::string> command{"bottomless", "run",     "--memory", options.memory, "--disk",
                                   options.disk, "--steps", kSteps,     "--trace",      trace};
  command.emplace_back("--");
  command.insert(command.end(), options.program.begin(), options.program.end());
  const Result<void> ran = run_and_wait(command);
  std::error_code ignored;
  const bool told = ran.ok() && fs::file_size(trace, ignored) > 0;
  Result<StepRecord> record = told ? record_in(trace) : Result<StepRecord>(unfinished());
  fs::remove(trace);
  if (!record.ok()) return record;
  if (record.value().rates.both == 0) {
    const std::string first = options.disk.substr(0, options.disk.find(','));
    if (Result<void> measured = measure_disk(first, record.value()); !measured.ok())
      return std::move(measured).error();
  }
  return record;
}

int plan(const PlanOptions& options) {
  if (options.program.empty())
    return usage_error("plan", "plan: name a trace, or a program to try");
  const std::string& first = options.program.front();
  const bool recorded = first.ends_with(".json");
  if (recorded && options.program.size() > 1)
    return usage_error("plan", "plan: options come before '" + first + "'");
  if (recorded && !(options.memory.empty() && options.disk.empty()))
    return usage_error(
        "plan", "plan: --memory and --disk are for programs; '" + first + "' has run already");
  if (!recorded && (options.memory.empty() || options.disk.empty()))
    return usage_error(
        "plan",
        "plan: '" + first + "' is not a trace (.json): to try a program, say --memory and --disk");
  const Result<StepRecord> record = recorded ? record_in(first) : record_of_program(options);
  if (!record.ok()) return failure("plan: " + record.error().message);
  const Explanation found = explain(record.value());
  if (!options.report.empty()) {
    std::ofstream page(options.report, std::ios::binary);
    page << page_of(record.value(), found);
    page.close();
    if (!page) return failure("plan: '" + options.report + "' cannot be written");
  }
  if (options.json) {
    std::printf("%s\n", json_of(found).c_str());
  } else if (options.explain) {
    std::printf("%s", text_of(found).c_str());
  } else {
    std::printf("%s\n", found.verdict.c_str());
  }
  return kDone;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app, const std::vector<std::string>& program) {
  auto options = std::make_shared<PlanOptions>();
  options->program = program;
  app.add_option("--memory", options->memory, "The limit to try a program with");
  app.add_option("--disk", options->disk, "Directory for what does not fit, to try a program with");
  app.add_flag("--explain", options->explain,
               "Say what is needed and moved, how long a step takes under other limits, and why");
  app.add_option("--report", options->report, "Write all of it as one HTML page");
  app.add_flag("--json", options->json, "The same for programs");
  app.footer(
      "What to explain comes last: a .json that 'bottomless run --trace' wrote, or a Python "
      "program "
      "with its\narguments, which runs for four steps.\n"
      "Example: bottomless plan --explain --memory 4GiB --disk /nvme/scratch train.py");
  return [options] { return plan(*options); };
}

}  // namespace bottomless::cli
