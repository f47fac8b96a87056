// `bottomless run`: puts an unmodified program under a limit. A Python script is started through
// `python -m bottomless`, a libtorch executable with the runtime preloaded. Either way the program
// replaces this process, so its output, signals and exit code are its own.
#include <bottomless/bytes.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/python.h"
#include "cli/verbs.h"
#include "memory/granted.h"
#include "os/started_rank.h"

namespace bottomless::cli {
namespace {

namespace fs = std::filesystem;

struct RunOptions {
  std::string memory;
  std::string disk;
  std::string disk_limit;
  bool checksums = false;
  bool no_deferred_updates = false;
  std::string update_in_backward;  // backward passes for each step; empty: not asked for
  std::string report;
  std::string trace;
  unsigned steps = 0;
  bool json = false;
  std::vector<std::string> program;
};

bool is_number_of_passes(std::string_view text) {
  int passes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), passes);
  return error == std::errc() && end == text.data() + text.size() && passes >= 1 &&
         passes <= 1'000'000;
}

// Programs and modules that start the ranks of a job and wait for them.
bool is_starter(std::string_view name) {
  for (const std::string_view starter :
       {"torchrun", "torch.distributed.run", "torch.distributed.launch", "mpirun", "mpiexec",
        "srun", "accelerate", "accelerate.commands.launch"}) {
    if (name == starter) return true;
  }
  return false;
}

int refuse_starter(const std::string& name) {
  return usage_error(
      "run",
      "run '" + name +
          "': it starts other processes, and those would not be under the limit; put it first, "
          "as in torchrun --no-python ... bottomless run ... script.py, or "
          "mpirun ... bottomless run ... script.py");
}

bool is_elf(const fs::path& file) {
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) ==
         "\x7f"
         "ELF";
}

// `python [flags] script.py|-m module|-c code ...`: the flags stay with the interpreter.
int run_python(const RunOptions& options, const fs::path& python, std::vector<std::string> rest) {
  std::vector<std::string> command{python.string()};
  while (!rest.empty() && rest[0].size() > 1 && rest[0][0] == '-' && rest[0] != "-m" &&
         rest[0] != "-c") {
    const bool takes_value = rest[0] == "-W" || rest[0] == "-X";
    for (int i = 0; i <= static_cast<int>(takes_value) && !rest.empty(); ++i) {
      command.push_back(rest.front());
      rest.erase(rest.begin());
    }
  }
  if (rest.empty()) return usage_error("run", "run: name a script to run");
  const bool by_option = rest[0] == "-m" || rest[0] == "-c";
  if (by_option && rest.size() < 2) return usage_error("run", "run: " + rest[0] + " needs a value");
  if (rest[0] == "-m" && is_starter(rest[1])) return refuse_starter(rest[1]);
  if (!by_option && !fs::exists(rest[0]))
    return usage_error("run", "run '" + rest[0] + "': there is no such script");
  command.insert(command.end(),
                 {"-m", "bottomless", "--memory", options.memory, "--disk", options.disk});
  if (!options.disk_limit.empty())
    command.insert(command.end(), {"--disk-limit", options.disk_limit});
  if (options.checksums) command.emplace_back("--checksums");
  if (options.no_deferred_updates) command.emplace_back("--no-deferred-updates");
  if (!options.update_in_backward.empty())
    command.insert(command.end(), {"--update-in-backward", options.update_in_backward});
  if (!options.report.empty()) command.insert(command.end(), {"--report", options.report});
  if (!options.trace.empty()) command.insert(command.end(), {"--trace", options.trace});
  if (options.steps > 0) command.insert(command.end(), {"--steps", std::to_string(options.steps)});
  if (options.json) command.emplace_back("--json");
  command.emplace_back("--");
  command.insert(command.end(), rest.begin(), rest.end());
  replace_process(python, command);
  return kFailed;
}

int run_executable(const RunOptions& options, const fs::path& program) {
  if (!options.update_in_backward.empty())
    return usage_error(
        "run",
        "--update-in-backward: works for Python's optimizers; those of C++ have no hooks for it");
  if (options.steps > 0)
    return usage_error(
        "run", "--steps: works for Python's optimizers; those of C++ cannot be interrupted");
  const auto preload = find_in_package("libbottomless_preload.so");
  if (!preload) {
    std::fprintf(
        stderr,
        "bottomless: run '%s': libbottomless_preload.so is not installed; build with torch\n",
        program.c_str());
    return kFailed;
  }
  const char* before = std::getenv("LD_PRELOAD");
  const std::string list = preload->string() + (before != nullptr ? std::string(":") + before : "");
  if (before != nullptr) setenv("BOTTOMLESS_RUN_LD_PRELOAD", before, 1);
  setenv("LD_PRELOAD", list.c_str(), 1);
  setenv("BOTTOMLESS_RUN_MEMORY", options.memory.c_str(), 1);
  setenv("BOTTOMLESS_RUN_DISK", options.disk.c_str(), 1);
  setenv("BOTTOMLESS_RUN_DISK_LIMIT", options.disk_limit.c_str(), 1);
  setenv("BOTTOMLESS_RUN_DEFERRED_UPDATES", options.no_deferred_updates ? "0" : "", 1);
  setenv("BOTTOMLESS_RUN_CHECKSUMS", options.checksums ? "1" : "", 1);
  setenv("BOTTOMLESS_RUN_REPORT", options.report.c_str(), 1);
  setenv("BOTTOMLESS_RUN_TRACE", options.trace.c_str(), 1);
  setenv("BOTTOMLESS_RUN_JSON", options.json ? "1" : "", 1);
  replace_process(program, options.program);
  return kFailed;
}

// One command line serves all ranks.
Result<void> put_rank(RunOptions& options) {
  for (std::string* text : {&options.disk, &options.report, &options.trace}) {
    Result<std::string> of_rank = with_rank(*text);
    if (!of_rank.ok()) return std::move(of_rank).error();
    *text = std::move(of_rank).value();
  }
  return {};
}

// "auto" becomes a number here, so that whoever is started need not know the word.
void resolve_automatic(RunOptions& options) {
  if (options.memory != "auto") return;
  const Grant grant = granted_memory();
  const Bytes limit = automatic_limit(grant);
  options.memory = std::to_string(limit);
  const int ranks = ranks_of_this_machine();
  const std::string sharing = ranks > 1 ? ", which " + std::to_string(ranks) + " ranks share" : "";
  std::fprintf(stderr, "bottomless: --memory auto: %s, of %s (%s)%s\n", format_bytes(limit).c_str(),
               format_bytes(grant.bytes).c_str(), grant.set_by.c_str(), sharing.c_str());
}

int run(RunOptions options) {
  const std::string& name = options.program.front();
  if (is_starter(fs::path(name).filename().string())) return refuse_starter(name);
  if (const Result<void> put = put_rank(options); !put.ok())
    return usage_error("run", put.error().message);
  resolve_automatic(options);
  for (const auto& [option, text] :
       {std::pair("--memory", options.memory), {"--disk-limit", options.disk_limit}}) {
    if (text.empty()) continue;
    if (const Result<Bytes> size = parse_bytes(text); !size.ok()) {
      return usage_error("run", std::string(option) + ": " + size.error().message);
    }
  }
  if (const std::string& passes = options.update_in_backward;
      !passes.empty() && !is_number_of_passes(passes)) {
    return usage_error("run", "--update-in-backward=" + passes +
                                  ": must be a number of backward passes, from 1 to 1000000");
  }
  const std::vector<std::string> rest(options.program.begin() + 1, options.program.end());
  if (fs::path(name).filename().string().starts_with("python")) {
    const auto python = find_program(name);
    if (!python) return usage_error("run", "run '" + name + "': there is no such interpreter");
    return run_python(options, *python, rest);
  }
  if (!name.ends_with(".py")) {
    const auto program = find_program(name);
    if (program && is_elf(*program)) return run_executable(options, *program);
  }
  const auto python = find_python();
  if (!python) return usage_error("run", "run '" + name + "': no python3 found on PATH");
  return run_python(options, *python, options.program);
}

}  // namespace

std::function<int()> add_run(CLI::App& app, const std::vector<std::string>& program) {
  auto options = std::make_shared<RunOptions>();
  options->program = program;
  app.add_option("--memory", options->memory,
                 "What all its CPU tensors may take together, for example 4GiB; auto: most of what "
                 "the machine, its control groups and ulimit leave")
      ->required();
  app.add_option(
         "--disk", options->disk,
         "Directory for what does not fit, or several with commas between; in it, {rank} and "
         "{local_rank} stand for this process's numbers under torchrun or mpirun")
      ->required();
  app.add_option("--disk-limit", options->disk_limit,
                 "The most that may be used there (default: all that is free)");
  app.add_flag("--checksums", options->checksums,
               "Notice when a disk gives back something else than was written");
  app.add_flag("--no-deferred-updates", options->no_deferred_updates,
               "Update parameters in the optimizer's step, not when they are next touched");
  app.add_flag(
         "--update-in-backward{1}", options->update_in_backward,
         "Step each parameter as soon as its gradient is final: gradients are not kept; =N: "
         "after N backward passes that accumulate it. Refused where the script clips gradients")
      ->take_last();
  app.add_option(
      "--report", options->report,
      "Write the last step as one HTML page: memory, disk, waiting, and what would make it faster");
  app.add_option(
      "--trace", options->trace,
      "Write the last step as a file that Perfetto shows and 'bottomless plan' explains");
  app.add_option("--steps", options->steps, "End the program after so many steps");
  app.add_flag("--json", options->json,
               "Print the run's counters as a last line of JSON on standard output");
  app.footer(
      "The program comes last: script.py, an executable, or python ..., and its own arguments.\n"
      "Example: bottomless run --memory 4GiB --disk /nvme/scratch train.py --epochs 3");
  return [options] {
    return options->program.empty() ? usage_error("run", "run: name a program to run")
                                    : run(*options);
  };
}

}  // namespace bottomless::cli
