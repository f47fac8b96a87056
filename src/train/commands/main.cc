// The program behind `bottomless train`, `generate`, `verify` and `export`.
#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/command_problem.h"
#include "torch/errors.h"
#include "train/commands/commands.h"

namespace bottomless::train {

int tell(const Error& error) {
  std::fprintf(stderr, "bottomless: %s\n", error.message.c_str());
  return kFailed;
}

namespace {

int run(int count, char** arguments) {
  CLI::App app("Language models that do not fit.", "bottomless");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, std::function<int()>>> verbs;
  const auto add = [&](const char* name, const char* what, const auto& adder) {
    CLI::App* const verb = app.add_subcommand(name, what);
    verbs.emplace_back(verb, adder(*verb));
  };
  add("train", "Fine-tune or pretrain a language model that does not fit", add_train);
  add("generate", "Let a model of any size write, inside a memory limit", add_generate);
  add("verify", "Check that a model or a checkpoint is complete, undamaged and finite", add_verify);
  add("export", "Make a Hugging Face directory of a checkpoint", add_export);
  try {
    app.parse(count, arguments);
  } catch (const CLI::Success& wanted) {  // --help
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    std::fprintf(stderr, "bottomless: %s\nsee 'bottomless VERB --help'\n",
                 command_problem(app, words, error.what()).c_str());
    return kUsage;
  }
  const auto chosen = std::find_if(verbs.begin(), verbs.end(),
                                   [](const auto& verb) { return verb.first->parsed(); });
  return chosen->second();
}

}  // namespace
}  // namespace bottomless::train

int main(int count, char** arguments) try {
  return bottomless::train::run(count, arguments);
} catch (const c10::Error& error) {
  return bottomless::train::tell(bottomless::caught(error));
} catch (const std::exception& error) {
  return bottomless::train::tell({bottomless::Code::io, error.what()});
}
