#include "train/setup/granted_options.h"

#include <string>

namespace bottomless::train {
namespace {

void add_bytes(CLI::App& app, const char* name, std::optional<Bytes>& into, const char* what) {
  app.add_option_function<std::string>(
         name,
         [&into, name](const std::string& text) {
           const Result<Bytes> bytes =
               text == "auto" ? Result<Bytes>(automatic_memory()) : parse_bytes(text);
           if (!bytes.ok()) throw CLI::ValidationError(name, bytes.error().message);
           into = bytes.value();
         },
         what)
      ->type_name("SIZE");
}

}  // namespace

void add_granted_options(CLI::App& app, GrantedOptions& options) {
  add_bytes(app, "--memory", options.memory,
            "Limit, such as 4GiB, or auto: most of what this process may have (default: none)");
  app.add_option("--disk", options.disk, "Directories for what does not fit, with commas between")
      ->delimiter(',');
  add_bytes(app, "--disk-limit", options.disk_limit, "The most that may be used there");
}

std::optional<Options> runtime_options(const GrantedOptions& granted,
                                       const std::filesystem::path& otherwise) {
  if (!granted.memory) return std::nullopt;
  Options options;
  options.memory = *granted.memory;
  options.disk = granted.disk;
  if (options.disk.empty()) options.disk = {otherwise};
  options.disk_limit = granted.disk_limit;
  return options;
}

}  // namespace bottomless::train
