// The arguments of `bottomless run` or `plan`, with zeros between.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "cli/command_line.h"

namespace {

using Arguments = std::vector<std::string>;

bool is_option(const std::string& argument) { return argument.size() > 1 && argument[0] == '-'; }

bool takes_value(const std::string& option) {
  return option == "--memory" || option == "--disk" || option == "--disk-limit" ||
         option == "--report" || option == "--trace" || option == "--steps";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Arguments given(1);
  for (const char c : std::string_view(reinterpret_cast<const char*>(data), size)) {
    if (c == '\0') {
      given.emplace_back();
    } else {
      given.back() += c;
    }
  }
  Arguments own = given;
  const Arguments program = bottomless::cli::cut_program(own);

  Arguments joined = own;
  const bool separated = own.size() + program.size() + 1 == given.size();
  if (separated) joined.emplace_back("--");
  joined.insert(joined.end(), program.begin(), program.end());
  BOTTOMLESS_CHECK(joined == given, "an argument was lost, made up or moved");
  BOTTOMLESS_CHECK(separated || program.empty() || !is_option(program.front()),
                   "an option was taken for the program");
  for (size_t i = 0; i < own.size(); ++i) {
    BOTTOMLESS_CHECK(is_option(own[i]) || (i > 0 && takes_value(own[i - 1])),
                     "the program was taken for a value");
  }
  return 0;
}
