// The verbs of the command line: each adds its options to the parser and returns what to do when
// it was chosen. Exit codes: 0 done, 1 failed, 2 usage.
#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless::cli {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

// Say what is wrong on standard error; what the process exits with.
int usage_error(std::string_view verb, const std::string& problem);  // and where its help is
int failure(const std::string& problem);

std::function<int()> add_run(CLI::App& app, const std::vector<std::string>& program);
std::function<int()> add_plan(CLI::App& app, const std::vector<std::string>& program);
std::function<int()> add_doctor(CLI::App& app);
std::function<int()> add_bench_disk(CLI::App& app);
std::function<int()> add_bench_in_python(CLI::App& app);
std::function<int()> add_in_trainer(CLI::App& app);

}  // namespace bottomless::cli
