#include "cli/verbs.h"

#include <cstdio>

namespace bottomless::cli {

int usage_error(std::string_view verb, const std::string& problem) {
  std::fprintf(stderr, "bottomless: %s\nsee 'bottomless %.*s --help'\n", problem.c_str(),
               static_cast<int>(verb.size()), verb.data());
  return kUsage;
}

int failure(const std::string& problem) {
  std::fprintf(stderr, "bottomless: %s\n", problem.c_str());
  return kFailed;
}

}  // namespace bottomless::cli
