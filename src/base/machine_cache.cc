#include "base/machine_cache.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "base/text_file.h"

namespace bottomless {
namespace {

namespace fs = std::filesystem;
using Entries = std::map<std::string, std::vector<double>, std::less<>>;

constexpr std::string_view kFirstLine = "numbers measured by bottomless; may be deleted";
constexpr char kBetween = '\t';

std::optional<std::vector<double>> parse_numbers(std::string_view text) {
  std::vector<double> numbers;
  while (!text.empty()) {
    const size_t length = std::min(text.find(kBetween), text.size());
    double number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + length, number);
    if (failed != std::errc{} || end != text.data() + length || !std::isfinite(number))
      return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return numbers;
}

Entries read_entries(const fs::path& file) {
  Entries entries;
  std::ifstream lines(file);
  std::string line;
  if (!std::getline(lines, line) || line != kFirstLine) return entries;
  while (std::getline(lines, line)) {
    const size_t end = line.find(kBetween);
    if (end == std::string::npos) continue;
    if (auto numbers = parse_numbers(std::string_view(line).substr(end + 1)))
      entries[line.substr(0, end)] = std::move(*numbers);
  }
  return entries;
}

std::string text_of(double number) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, number).ptr};
}

bool write_entries(const Entries& entries, const fs::path& file) {
  std::ofstream stream(file, std::ios::trunc);
  stream << kFirstLine << '\n';
  for (const auto& [key, numbers] : entries) {
    stream << key;
    for (const double number : numbers) stream << kBetween << text_of(number);
    stream << '\n';
  }
  stream.close();
  return stream.good();
}

unsigned cores_of_affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return static_cast<unsigned>(CPU_COUNT(&set));
  return static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN));  // more than a cpu_set_t can name
}

}  // namespace

MachineCache MachineCache::of_user() {
  const auto in = [](const char* variable) {
    const char* value = std::getenv(variable);
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path();  // by its specification, others are ignored
  };
  fs::path directory = in("XDG_CACHE_HOME");
  if (directory.empty() && !in("HOME").empty()) directory = in("HOME") / ".cache";
  return MachineCache(directory.empty() ? directory : directory / "bottomless" / "measured");
}

std::optional<std::vector<double>> MachineCache::find(std::string_view key) const {
  const Entries entries = read_entries(file_);
  const auto found = entries.find(key);
  return found == entries.end() ? std::nullopt : std::optional(found->second);
}

void MachineCache::keep(std::string_view key, const std::vector<double>& numbers) const {
  if (file_.empty()) return;
  std::error_code failed;
  fs::create_directories(file_.parent_path(), failed);
  Entries entries = read_entries(file_);
  entries[std::string(key)] = numbers;
  // Beside it under a name of this process's own, then in its place: nobody reads half of it.
  const fs::path draft = file_.string() + "." + std::to_string(getpid());
  if (write_entries(entries, draft)) {
    fs::rename(draft, file_, failed);
    if (!failed) return;
  }
  fs::remove(draft, failed);
}

std::string machine_key(const fs::path& root) {
  std::string model = field(root / "proc/cpuinfo", "model name");
  if (model.empty()) {  // as on ARM
    utsname name{};
    uname(&name);
    model = name.machine;
  }
  std::replace(model.begin(), model.end(), kBetween, ' ');
  return model + ", " + std::to_string(cores_of_affinity()) + " cores, bottomless " +
         BOTTOMLESS_VERSION;
}

}  // namespace bottomless
