// What is done to the arguments of a command before its options are read.
// Thread-safety: free functions without state.
#pragma once
#include <string>
#include <vector>

namespace bottomless::cli {

// Takes the program and its own arguments off the end of `run`'s or `plan`'s: what follows the
// program belongs to it, options too.
std::vector<std::string> cut_program(std::vector<std::string>& arguments);

}  // namespace bottomless::cli
