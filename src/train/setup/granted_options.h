// The options --memory, --disk and --disk-limit, of every verb that computes.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/torch.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <vector>

namespace bottomless::train {

struct GrantedOptions {
  std::optional<Bytes> memory;  // none: as much as there is
  std::vector<std::filesystem::path> disk;
  std::optional<Bytes> disk_limit;
};

void add_granted_options(CLI::App& app, GrantedOptions& options);

// The Runtime that was asked for, if any. Without --disk what does not fit goes to `otherwise`. Throws as Runtime does.
std::optional<Options> runtime_options(const GrantedOptions& granted,
                                       const std::filesystem::path& otherwise);

}  // namespace bottomless::train
