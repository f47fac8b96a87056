#include "cli/command_line.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace bottomless::cli {
namespace {

constexpr std::string_view kTakeValues[] = {"--memory", "--disk",  "--disk-limit",
                                            "--report", "--trace", "--steps"};

}  // namespace

std::vector<std::string> cut_program(std::vector<std::string>& arguments) {
  size_t at = 0;
  while (at < arguments.size() && arguments[at].size() > 1 && arguments[at][0] == '-') {
    const std::string& option = arguments[at];
    if (option == "--") {
      arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(at));
      break;
    }
    at += std::ranges::find(kTakeValues, option) != std::end(kTakeValues) ? 2 : 1;
  }
  at = std::min(at, arguments.size());
  std::vector<std::string> program(arguments.begin() + static_cast<ptrdiff_t>(at), arguments.end());
  arguments.resize(at);
  return program;
}

}  // namespace bottomless::cli
