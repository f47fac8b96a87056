// A fresh directory on a real file system, removed at the end.
#pragma once
#include <filesystem>

namespace bottomless {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // How many names there are in it.
  size_t entries() const;

 private:
  std::filesystem::path path_;
};

}  // namespace bottomless
