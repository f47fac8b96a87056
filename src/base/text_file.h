// Reads the small text files in which the kernel tells about itself, such as /proc/meminfo. A file
// that is not there, or says nothing of what was asked, gives an empty answer.
// Thread-safety: free functions without state.
#pragma once
#include <bottomless/bytes.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace bottomless {

std::string first_line(const std::filesystem::path& file);

// What follows `key` in a file of lines such as "key 123", "Key:   123 kB" or "key name : text".
std::string field(const std::filesystem::path& file, std::string_view key);

// The same where it is a size.
std::optional<Bytes> byte_field(const std::filesystem::path& file, std::string_view key);

}  // namespace bottomless
