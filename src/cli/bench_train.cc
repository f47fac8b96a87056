// `bottomless bench train`: the models and the runs to compare with are Python's, and so is what
// starts them in turns.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/python.h"
#include "cli/verbs.h"

namespace bottomless::cli {

std::function<int()> add_bench_train(CLI::App& app) {
  app.prefix_command();  // every option is passed on
  app.set_help_flag();
  return [&app] {
    const auto python = find_python();
    if (!python) {
      std::fprintf(stderr, "bottomless: bench train: no python3 found on PATH\n");
      return kUsage;
    }
    std::vector<std::string> command{python->string(), "-m", "bottomless._bench.train"};
    const std::vector<std::string> rest = app.remaining();
    command.insert(command.end(), rest.begin(), rest.end());
    replace_process(*python, command);
    return kFailed;
  };
}

}  // namespace bottomless::cli
