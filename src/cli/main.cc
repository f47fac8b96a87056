#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/command_problem.h"
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
  CLI::App* const bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);

  std::vector<std::pair<CLI::App*, std::function<int()>>> verbs;
  const auto add = [&verbs](CLI::App& to, const char* name, const char* what, const auto& adder) {
    CLI::App* const verb = to.add_subcommand(name, what);
    verbs.emplace_back(verb, adder(*verb));
  };
  add(app, "run", "Run a Python script or a libtorch program inside a memory limit",
      [&](CLI::App& verb) { return add_run(verb, program); });
  add(app, "train", "Fine-tune or pretrain a language model that does not fit", add_in_trainer);
  add(app, "generate", "Let a model of any size write, inside a memory limit", add_in_trainer);
  add(app, "verify", "Check that a model or a checkpoint is complete, undamaged and finite",
      add_in_trainer);
  add(app, "export", "Make a Hugging Face directory of a checkpoint", add_in_trainer);
  add(app, "plan",
      "Tell what a step needs, moves and takes, and what another limit would make of it",
      [&](CLI::App& verb) { return add_plan(verb, program); });
  add(app, "doctor", "Tell what this machine offers for a run, and how to make it better",
      add_doctor);
  add(*bench, "disk",
      "Measure what disks give to a run, and compare with fio where it is installed",
      add_bench_disk);
  add(*bench, "train",
      "Compare training under limits with plain PyTorch, and with DeepSpeed where it is",
      add_bench_in_python);
  add(*bench, "optimizer",
      "Compare an optimizer's step with what the memory gives, and with other optimizers",
      add_bench_in_python);

  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);                  // CLI11 takes them from the back
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "bottomless: %s\nsee 'bottomless --help' or 'bottomless VERB --help'\n",
                 bottomless::command_problem(app, arguments, error.what()).c_str());
    return kUsage;
  }
  const auto chosen = std::find_if(verbs.begin(), verbs.end(),
                                   [](const auto& verb) { return verb.first->parsed(); });
  return chosen->second();
}
