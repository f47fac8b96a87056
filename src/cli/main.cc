#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/verbs.h"

int main(int count, char** raw) {
  using namespace bottomless::cli;
  std::vector<std::string> arguments(raw + 1, raw + count);
  std::vector<std::string> program;
  if (!arguments.empty() && (arguments.front() == "run" || arguments.front() == "plan")) {
    std::vector<std::string> own(arguments.begin() + 1, arguments.end());
    program = cut_program(own);
    own.insert(own.begin(), arguments.front());
    arguments = own;
  }

  CLI::App app("Training models far larger than the memory you have.", "bottomless");
  app.set_version_flag("--version", BOTTOMLESS_VERSION);
  app.require_subcommand(1);
  CLI::App* run =
      app.add_subcommand("run", "Run a Python script or a libtorch program inside a memory limit");
  CLI::App* doctor = app.add_subcommand(
      "doctor", "Tell what this machine offers for a run, and how to make it better");
  const std::function<int()> do_run = add_run(*run, program);
  const std::function<int()> do_doctor = add_doctor(*doctor);
  CLI::App* plan = app.add_subcommand(
      "plan", "Tell what a step needs, moves and takes, and what another limit would make of it");
  const std::function<int()> do_plan = add_plan(*plan, program);
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  const std::function<int()> do_bench_disk = add_bench_disk(*bench->add_subcommand(
      "disk", "Measure what disks give to a run, and compare with fio where it is installed"));
  CLI::App* train = bench->add_subcommand(
      "train", "Compare training under limits with plain PyTorch, and with DeepSpeed where it is");
  const std::function<int()> do_bench_train = add_bench_in_python(*train);
  CLI::App* optimizer = bench->add_subcommand(
      "optimizer",
      "Compare an optimizer's step with what the memory gives, and with other optimizers");
  const std::function<int()> do_bench_optimizer = add_bench_in_python(*optimizer);

  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "bottomless: %s\nsee 'bottomless --help' or 'bottomless VERB --help'\n",
                 error.what());
    return kUsage;
  }
  if (run->parsed()) return do_run();
  if (plan->parsed()) return do_plan();
  if (doctor->parsed()) return do_doctor();
  if (optimizer->parsed()) return do_bench_optimizer();
  return train->parsed() ? do_bench_train() : do_bench_disk();
}
