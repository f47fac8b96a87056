// Runs a program to its end, without a shell, and returns what it printed on both its streams.
// Thread-safety: a free function without state; it may be called beside other threads.
#pragma once
#include <bottomless/result.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace bottomless::cli {

struct Child {
  std::vector<std::string> command;    // the program's path, then its arguments
  std::vector<std::string> variables;  // "NAME=value": these instead of our own of that name
  int keep_open = -1;                  // a descriptor that it is to have, too
  std::optional<std::chrono::milliseconds> deadline;  // it is killed then
};

// It ends by SIGTERM should this process die meanwhile. If it fails, the error quotes the last line
// that it printed.
Result<std::string> output_of(Child child);

}  // namespace bottomless::cli
