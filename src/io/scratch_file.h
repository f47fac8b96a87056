// A file without a name: nobody else can open it, and nothing of it is left when the process
// ends, however it ends.
// Thread-safety: grow() from one thread at a time; the descriptor may be used from any.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.h"

namespace bottomless {

enum class Caching { direct, buffered };  // direct: O_DIRECT, past the page cache

class ScratchFile {
 public:
  // Direct where the file system can, else buffered; caching() tells which it became.
  static Result<ScratchFile> open(const std::filesystem::path& directory);

  // Makes room for `bytes` in all, so that a later write into it cannot find the disk full.
  Result<void> grow(Bytes bytes);

  int fd() const { return fd_.get(); }
  Bytes bytes() const { return bytes_; }
  Caching caching() const { return caching_; }
  const std::filesystem::path& directory() const { return directory_; }

 private:
  ScratchFile(std::filesystem::path directory, UniqueFd fd, Caching caching)
      : directory_(std::move(directory)), fd_(std::move(fd)), caching_(caching) {}

  std::filesystem::path directory_;
  UniqueFd fd_;
  Caching caching_;
  Bytes bytes_ = 0;
};

}  // namespace bottomless
