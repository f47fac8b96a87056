// Numbers that were measured on this machine, kept in a file of the user's cache directory so that they need not be
// measured in every process. A file that cannot be read or written, or makes no sense, is as good as none: nothing
// fails for it.
// Thread-safety: every call from any thread and process. A reader sees a file as a whole; of two that write at the
// same time, one may win.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bottomless {

class MachineCache {
 public:
  // An empty path: nothing is found, and nothing kept.
  explicit MachineCache(std::filesystem::path file) : file_(std::move(file)) {}
  // $XDG_CACHE_HOME/bottomless/measured, or ~/.cache/bottomless/measured.
  static MachineCache of_user();

  // Keys and numbers are those of `keep`; keys contain no tab and no end of line.
  std::optional<std::vector<double>> find(std::string_view key) const;
  void keep(std::string_view key, const std::vector<double>& numbers) const;

  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

// What a measurement of the processor depends on: its model, the cores that this process may use, and the version of
// Bottomless.
std::string machine_key(const std::filesystem::path& root = "/");

}  // namespace bottomless
