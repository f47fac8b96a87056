// What a checkpoint directory holds: `manifest.json` names the files that belong to the checkpoint, their sizes, and each
// tensor with its checksum. What it does not name does not belong to it.
// Thread-safety: free functions without state, and values.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/dtype.h"
#include "checkpoint/files.h"

namespace bottomless {

inline constexpr std::string_view kManifestName = "manifest.json";
// Of the checkpoint before it, where two are kept.
inline constexpr std::string_view kPreviousManifestName = "manifest-previous.json";
inline constexpr Bytes kMostManifestBytes = 1_GiB;

struct TensorEntry : TensorSpec {
  uint64_t checksum = 0;  // see checksum.h
  bool operator==(const TensorEntry&) const = default;
};

struct FileEntry {
  std::string name;  // in the directory; no path
  Bytes bytes = 0;
  std::vector<TensorEntry> tensors;
  bool operator==(const FileEntry&) const = default;
};

struct Manifest {
  uint64_t step = 0;
  std::vector<FileEntry> files;  // no tensor's name stands in two of them
  std::string extra = "{}";      // the caller's: a JSON object, kept as it is but for white space
  bool operator==(const Manifest&) const = default;
};

// An entry on its way from the rank that wrote the file to the one that commits.
Result<std::string> to_json(const FileEntry& entry);
Result<FileEntry> parse_file_entry(std::string_view json);

// The manifest's text ends in a checksum of itself. Reading it: Code::corrupt if it is damaged or contradicts itself,
// Code::unsupported if a later version wrote it. `where` names it in an error.
Result<std::string> to_json(const Manifest& manifest);
Result<Manifest> parse_manifest(std::string_view json, std::string_view where);

// Reads the manifest of a directory, and checks that its files are there and have their sizes. Code::not_found: there is
// no checkpoint. `name`: kManifestName or kPreviousManifestName.
Result<Manifest> load_manifest(Files& files, const std::filesystem::path& directory,
                               std::string_view name = kManifestName);

// That of load_manifest(), for a manifest at hand.
Result<void> check_files(Files& files, const std::filesystem::path& directory,
                         const Manifest& manifest);

// The directory that holds `path`: "a" of "a/b" and of "a/b/", "." of "b".
std::filesystem::path directory_of(const std::filesystem::path& path);

}  // namespace bottomless
