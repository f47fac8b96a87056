// The files in which a kernel, or something that looks like one, tells how much memory there is. The input is their
// contents, with zeros between.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "memory/granted.h"
#include "support/temporary_directory.h"

namespace {

namespace fs = std::filesystem;
using bottomless::Bytes;

class Root {
 public:
  Root() {
    for (const char* folder :
         {"proc/self", "sys/fs/cgroup/job/step", "sys/fs/cgroup/memory/job/step"}) {
      fs::create_directories(path() / folder);
    }
  }
  const fs::path& path() const { return directory_.path(); }
  // Most inputs differ from the one before in one file.
  void write(const std::string& file, std::string_view content) {
    const auto [known, is_new] = written_.try_emplace(file);
    if (!is_new && known->second == content) return;
    known->second = content;
    fs::remove(path() / file);  // a file that is emptied first goes to the disk when it is closed
    std::ofstream(path() / file, std::ios::binary) << content;
  }

 private:
  bottomless::TemporaryDirectory directory_;
  std::map<std::string, std::string> written_;
};

// What a well-formed meminfo says, saturated; nothing if it is not well-formed.
std::optional<Bytes> available_in(std::string_view meminfo) {
  constexpr std::string_view kKey = "MemAvailable", kUnit = " kB";
  for (std::string_view rest = meminfo; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!line.starts_with(kKey)) continue;
    line.remove_prefix(kKey.size());
    if (!line.starts_with(": ") || !line.ends_with(kUnit)) return std::nullopt;
    line.remove_suffix(kUnit.size());
    line.remove_prefix(std::min(line.size(), line.find_first_not_of(": ")));
    if (line.empty() || line.find_first_not_of("0123456789") != std::string_view::npos) {
      return std::nullopt;
    }
    double kib = 0;
    Bytes exact = 0;
    for (const char digit : line) {
      kib = kib * 10 + (digit - '0');
      exact = exact * 10 + static_cast<Bytes>(digit - '0');
    }
    return kib * 1024 < 0x1p64 ? exact * 1024 : std::numeric_limits<Bytes>::max();
  }
  return std::nullopt;
}

std::string_view next_part(std::string_view& rest) {
  const size_t end = rest.find('\0');
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Root root;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string_view meminfo = next_part(rest);
  root.write("proc/meminfo", meminfo);
  root.write("proc/self/status", next_part(rest));
  const std::string_view groups = next_part(rest);
  for (const std::string group : {"", "job/", "job/step/"}) {
    const std::string_view limit = next_part(rest), usage = next_part(rest), stat = next_part(rest);
    const std::string second = "sys/fs/cgroup/" + group;
    root.write(second + "memory.max", limit);
    root.write(second + "memory.current", usage);
    root.write(second + "memory.stat", stat);
    const std::string first = "sys/fs/cgroup/memory/" + group;
    root.write(first + "memory.limit_in_bytes", limit);
    root.write(first + "memory.usage_in_bytes", usage);
    root.write(first + "memory.stat", stat);
  }

  root.write("proc/self/cgroup", "");
  const bottomless::Grant machine = bottomless::granted_memory(root.path());
  if (const auto available = available_in(meminfo)) {
    BOTTOMLESS_CHECK(machine.bytes <= *available, "more than the machine has was granted");
    BOTTOMLESS_CHECK(machine.bytes == *available || machine.set_by.starts_with("RLIMIT"),
                     "less than the machine has was granted");
  }
  root.write("proc/self/cgroup", groups);
  const bottomless::Grant grant = bottomless::granted_memory(root.path());
  BOTTOMLESS_CHECK(grant.bytes <= machine.bytes, "a control group gave more than the machine has");
  BOTTOMLESS_CHECK(grant.bytes == machine.bytes || grant.set_by != machine.set_by,
                   "less was granted, and nobody is named");
  BOTTOMLESS_CHECK(!grant.set_by.empty(), "nobody is named");
  BOTTOMLESS_CHECK(bottomless::automatic_limit(grant) <= grant.bytes, "more is taken than granted");
  return 0;
}
