// PATH, and after a zero the name that is looked up on it.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "cli/python.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  setenv("PATH", input.substr(0, end).c_str(), 1);
  const std::string name = end == std::string::npos ? "sh" : input.substr(end + 1);
  const auto found = bottomless::cli::find_program(name);
  if (!found) return 0;
  BOTTOMLESS_CHECK(access(found->c_str(), X_OK) == 0, "what was found cannot be executed");
  BOTTOMLESS_CHECK(name.find('/') != std::string::npos || !std::filesystem::is_directory(*found),
                   "a directory was found");
  return 0;
}
