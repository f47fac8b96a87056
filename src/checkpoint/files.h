// All that checkpoints ask of the operating system, so that a test can break the n-th request of it, or cut the power.
// Paths name files as everywhere; an Error names the path and what was tried.
// Thread-safety: any thread may use a Files or a File, also at the same time; who creates and removes agrees on names.
// Lifetime: a File may outlive the Files that it came from.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bottomless {

class File {
 public:
  virtual ~File() = default;

  virtual Result<Bytes> size() = 0;
  // At least one byte and perhaps fewer than asked for; 0 at the end of the file only.
  virtual Result<size_t> read_some(Bytes offset, std::span<std::byte> into) = 0;
  virtual Result<size_t> write_some(Bytes offset, std::span<const std::byte> from) = 0;
  // The file has `bytes`; where the file system can, writing them cannot find the disk full any more.
  virtual Result<void> allocate(Bytes bytes) = 0;
  // Returns when all that was written survives a power cut. After a failure nothing is known of it: write a new file.
  virtual Result<void> sync() = 0;
};

class Files {
 public:
  using Path = std::filesystem::path;
  virtual ~Files() = default;

  virtual Result<std::unique_ptr<File>> open(const Path& path) = 0;    // to read; Code::not_found
  virtual Result<std::unique_ptr<File>> create(const Path& path) = 0;  // fails where there is one
  virtual Result<void> rename(const Path& from, const Path& to) = 0;   // replaces `to`, atomically
  virtual Result<void> remove(const Path& path) = 0;
  virtual Result<void> make_directory(const Path& path) = 0;  // that there is one is well
  virtual Result<std::vector<std::string>> list(const Path& directory) = 0;  // names, in any order
  // Returns when what was created, renamed and removed in it survives a power cut.
  virtual Result<void> sync_directory(const Path& directory) = 0;
};

// The operating system's.
std::unique_ptr<Files> make_files();

// All of it: short transfers are resumed. An end of the file before that is Code::corrupt. `where` names the file.
Result<void> read_all(File& file, Bytes offset, std::span<std::byte> into,
                      const std::filesystem::path& where);
Result<void> write_all(File& file, Bytes offset, std::span<const std::byte> from,
                       const std::filesystem::path& where);

// All of a file that people or tools write, such as JSON; Code::corrupt beyond 256 MiB.
Result<std::string> read_text(Files& files, const std::filesystem::path& path);

}  // namespace bottomless
