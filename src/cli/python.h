// Finds what a program is to be started with.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace bottomless::cli {

// The directory that this executable lies in.
std::filesystem::path own_directory();

// A name looked up on PATH as a shell would; a name with a slash is taken as it is.
std::optional<std::filesystem::path> find_program(const std::string& name);

// The interpreter for scripts: the one installed beside this executable, else python3 on PATH.
std::optional<std::filesystem::path> find_python();

// A file that is installed with the library: a part of the Python package, of an installation's lib, or of the build.
std::optional<std::filesystem::path> find_in_package(const std::string& name);

// What a command prints on standard output, without the last line break; nothing if it fails.
std::optional<std::string> output_of(const std::string& command);

// Becomes that program; the first argument is its name. Returns only if it cannot, having said why.
void replace_process(const std::filesystem::path& program,
                     const std::vector<std::string>& arguments);

}  // namespace bottomless::cli
