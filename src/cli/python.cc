#include "cli/python.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace bottomless::cli {

namespace fs = std::filesystem;

fs::path own_directory() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

std::optional<fs::path> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    return access(name.c_str(), X_OK) == 0 ? std::optional<fs::path>(name) : std::nullopt;
  }
  const char* path = std::getenv("PATH");
  std::istringstream directories(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const fs::path candidate = fs::path(directory.empty() ? "." : directory) / name;
    if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate)) return candidate;
  }
  return std::nullopt;
}

std::optional<fs::path> find_python() {
  if (const fs::path beside = own_directory() / "python"; access(beside.c_str(), X_OK) == 0)
    return beside;
  return find_program("python3");
}

std::optional<fs::path> find_in_package(const std::string& name) {
  for (const char* place : {"../lib", "../../python/bottomless", "."}) {
    if (const fs::path candidate = own_directory() / place / name; fs::exists(candidate))
      return fs::canonical(candidate);
  }
  const auto python = find_python();
  if (!python) return std::nullopt;
  const auto package =
      output_of("'" + python->string() +
                "' -c \"import importlib.util as u; "
                "print(u.find_spec('bottomless').submodule_search_locations[0])\" 2>/dev/null");
  if (!package || !fs::exists(fs::path(*package) / name)) return std::nullopt;
  return fs::path(*package) / name;
}

std::optional<std::string> output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string output;
  char buffer[512];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, got);
  if (pclose(pipe) != 0) return std::nullopt;
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

void replace_process(const fs::path& program, const std::vector<std::string>& arguments) {
  std::vector<char*> pointers;
  for (const std::string& argument : arguments)
    pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  execv(program.c_str(), pointers.data());
  std::perror(("bottomless: run " + program.string()).c_str());
}

}  // namespace bottomless::cli
