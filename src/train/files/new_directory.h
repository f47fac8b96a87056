// A directory that takes the place of another one as a whole: written beside it, brought to the disk, put in place. At every
// moment there is the old one or the new one, complete.
// Thread-safety: free functions without state; one writer at a time for one directory.
#pragma once
#include <bottomless/result.h>

#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/files.h"

namespace bottomless::train {

struct DirectoryContent {
  std::string what;  // for errors: "a model"
  // The names of files that may be there, and may be removed with the old directory. One with others is refused.
  std::function<bool(const std::string& name)> is_part;
  std::function<Result<void>(const std::filesystem::path& draft)> write;
};

// `directory` may have this content, or be empty, or not be there; its parent is. On an error nothing has changed.
Result<void> replace_directory(Files& files, const std::filesystem::path& directory,
                               const DirectoryContent& content);

// A new file, brought to the disk.
Result<void> write_text(Files& files, const std::filesystem::path& path, const std::string& text);

}  // namespace bottomless::train
