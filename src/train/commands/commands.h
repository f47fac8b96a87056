// The verbs of the trainer: each adds its options to the parser and returns what to do when it was chosen.
// Exit codes: 0 done, 1 failed, 2 usage, 128 + n: saved and stopped by signal n (130: Ctrl-C).
#pragma once
#include <CLI/CLI.hpp>
#include <functional>

#include "bottomless/result.h"

namespace bottomless::train {

std::function<int()> add_train(CLI::App& app);
std::function<int()> add_generate(CLI::App& app);
std::function<int()> add_verify(CLI::App& app);
std::function<int()> add_export(CLI::App& app);

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;
inline constexpr int kStoppedBy = 128;  // and the number of the signal

// Says it on standard error, in one line; the exit code.
int tell(const Error& error);

}  // namespace bottomless::train
