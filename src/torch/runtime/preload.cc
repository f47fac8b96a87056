// What `bottomless run ./program` loads into an unmodified libtorch executable before its main().
#include <bottomless/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>

namespace bottomless {
namespace {

// Reads a variable and removes it: processes that the program starts are not under the limit.
std::string take_variable(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value != nullptr ? value : "";
  unsetenv(name);
  return text;
}

void say(const std::exception& error) {
  const std::string text = error.what();
  std::fprintf(stderr, "%s\n", text.substr(0, text.find("\nException raised from")).c_str());
}

class Preloaded {
 public:
  Preloaded() {
    const std::string memory = take_variable("BOTTOMLESS_RUN_MEMORY");
    const std::string disk = take_variable("BOTTOMLESS_RUN_DISK");
    const std::string disk_limit = take_variable("BOTTOMLESS_RUN_DISK_LIMIT");
    const bool deferred_updates = take_variable("BOTTOMLESS_RUN_DEFERRED_UPDATES") != "0";
    report_ = take_variable("BOTTOMLESS_RUN_REPORT");
    trace_ = take_variable("BOTTOMLESS_RUN_TRACE");
    const bool checksums = !take_variable("BOTTOMLESS_RUN_CHECKSUMS").empty();
    json_ = !take_variable("BOTTOMLESS_RUN_JSON").empty();
    const std::string preload_before = take_variable("BOTTOMLESS_RUN_LD_PRELOAD");
    if (preload_before.empty()) {
      unsetenv("LD_PRELOAD");
    } else {
      setenv("LD_PRELOAD", preload_before.c_str(), 1);
    }
    if (memory.empty()) return;
    try {
      Options options{.memory = parse_bytes(memory).value(),
                      .disk = {},
                      .disk_limit = std::nullopt,
                      .deferred_updates = deferred_updates,
                      .recorded = !report_.empty() || !trace_.empty(),
                      .checksums = checksums};
      if (!disk_limit.empty()) options.disk_limit = parse_bytes(disk_limit).value();
      std::istringstream directories(disk);
      for (std::string directory; std::getline(directories, directory, ',');)
        options.disk.emplace_back(directory);
      runtime_.emplace(options);
    } catch (const std::exception& error) {
      say(error);
      std::_Exit(1);
    }
  }

  ~Preloaded() {
    if (!runtime_) return;
    try {
      if (!report_.empty()) runtime_->report(report_);
      if (!trace_.empty()) runtime_->trace(trace_);
    } catch (const std::exception& error) {
      say(error);
    }
    if (!json_) return;
    std::fflush(stdout);
    std::printf("%s\n", to_json(runtime_->stats()).c_str());
    std::fflush(stdout);
  }

 private:
  std::optional<Runtime> runtime_;
  bool json_ = false;
  std::string report_;
  std::string trace_;
};

Preloaded g_preloaded;  // NOLINT: its constructor is the entry point of a preloaded library

}  // namespace
}  // namespace bottomless
