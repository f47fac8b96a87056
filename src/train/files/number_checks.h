// Checks of options that are numbers, with messages for people: those of CLI11 write out the largest double.
// Thread-safety: free functions without state.
#pragma once
#include <CLI/CLI.hpp>

namespace bottomless::train {

CLI::Validator number_from(double least);  // or more
CLI::Validator number_above(double bound);
CLI::Validator number_between(double least, double most);  // or either of them

}  // namespace bottomless::train
