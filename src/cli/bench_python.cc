// `bottomless bench train` and `bottomless bench optimizer`: what is compared with is Python's, and so is what runs all of
// them in turns.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cli/python.h"
#include "cli/verbs.h"

namespace bottomless::cli {

std::function<int()> add_bench_in_python(CLI::App& app) {
  app.prefix_command();  // every option is passed on
  app.set_help_flag();
  return [&app] {
    const auto python = find_python();
    if (!python) {
      std::fprintf(stderr, "bottomless: bench %s: no python3 found on PATH\n",
                   app.get_name().c_str());
      return kUsage;
    }
    std::vector<std::string> command{python->string(), "-m", "bottomless._bench." + app.get_name()};
    const std::vector<std::string> rest = app.remaining();
    command.insert(command.end(), rest.begin(), rest.end());
    replace_process(*python, command);
    return kFailed;
  };
}

}  // namespace bottomless::cli
