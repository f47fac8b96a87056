// A file that grows by whole pieces, and begins with what is kept of the file that was there. The beginning is written beside it,
// brought to the disk and renamed; pieces are with the kernel when append() returns, so that a killed process loses none.
// Thread-safety: one thread at a time.
// Lifetime: the Files must outlive begin() only.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "checkpoint/files.h"

namespace bottomless::journal {

class TextLog {
 public:
  static Result<TextLog> begin(Files& files, const std::filesystem::path& path,
                               std::string_view kept);

  Result<void> append(std::string_view piece);

 private:
  TextLog(std::unique_ptr<File> file, std::filesystem::path path, Bytes size);

  std::unique_ptr<File> file_;
  std::filesystem::path path_;
  Bytes size_;
};

}  // namespace bottomless::journal
