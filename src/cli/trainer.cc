// `bottomless train`, `generate`, `verify` and `export`: they compute, so a program that is linked with torch does them. It is
// installed beside the library and takes the place of this process.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/python.h"
#include "cli/verbs.h"

namespace bottomless::cli {

std::function<int()> add_in_trainer(CLI::App& app) {
  app.prefix_command();  // every option is passed on
  app.set_help_flag();
  return [&app] {
    const auto trainer = find_in_package("bottomless-trainer");
    if (!trainer) {
      std::fprintf(
          stderr,
          "bottomless: %s: the program bottomless-trainer is not installed; build with torch\n",
          app.get_name().c_str());
      return kFailed;
    }
    std::vector<std::string> command{"bottomless", app.get_name()};
    const std::vector<std::string> rest = app.remaining();
    command.insert(command.end(), rest.begin(), rest.end());
    replace_process(*trainer, command);
    return kFailed;
  };
}

}  // namespace bottomless::cli
