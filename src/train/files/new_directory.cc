#include "train/files/new_directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <vector>

#include "base/errno_error.h"
#include "checkpoint/manifest.h"

namespace bottomless::train {
namespace {

using std::filesystem::path;

Result<std::vector<std::string>> names_in(Files& files, const path& directory) {
  Result<std::vector<std::string>> names = files.list(directory);
  if (!names.ok() && names.error().code == Code::not_found) return std::vector<std::string>();
  return names;
}

Result<void> check_target(Files& files, const path& directory, const DirectoryContent& content) {
  const Result<std::vector<std::string>> names = names_in(files, directory);
  if (!names.ok()) return names.error();
  for (const std::string& name : names.value()) {
    if (content.is_part(name)) continue;
    return Error{Code::invalid_argument, "write " + content.what + " to '" + directory.string() +
                                             "': it holds '" + name +
                                             "', which is no file of such a directory and would be "
                                             "lost; name another directory"};
  }
  return {};
}

// The files that we may have written, and the directory if nothing else is in it.
Result<void> remove_directory(Files& files, const path& directory,
                              const DirectoryContent& content) {
  std::error_code unknown;
  if (!std::filesystem::exists(directory, unknown)) return {};
  const Result<std::vector<std::string>> names = names_in(files, directory);
  if (!names.ok()) return names.error();
  for (const std::string& name : names.value()) {
    if (!content.is_part(name)) continue;
    if (Result<void> removed = files.remove(directory / name); !removed.ok()) return removed;
  }
  if (::rmdir(directory.c_str()) == 0) return {};
  return errno_error(errno, "remove the directory '" + directory.string() + "'");
}

Result<void> put_in_place(Files& files, const path& draft, const path& directory,
                          const DirectoryContent& content) {
  // rename() by itself replaces a directory only if that is empty.
  if (::rename(draft.c_str(), directory.c_str()) != 0) {
    if (::renameat2(AT_FDCWD, draft.c_str(), AT_FDCWD, directory.c_str(), RENAME_EXCHANGE) != 0) {
      return errno_error(errno,
                         "put " + content.what + " in the place of '" + directory.string() + "'",
                         "the new one is complete in '" + draft.string() + "'; move it yourself");
    }
    if (Result<void> removed = remove_directory(files, draft, content); !removed.ok())
      return removed;
  }
  return files.sync_directory(directory_of(directory));
}

}  // namespace

Result<void> replace_directory(Files& files, const path& given, const DirectoryContent& content) {
  path directory = std::filesystem::absolute(given).lexically_normal();
  if (directory.filename().empty()) directory = directory.parent_path();  // of "a/b/"
  if (Result<void> checked = check_target(files, directory, content); !checked.ok()) return checked;
  const path draft = directory_of(directory) / ("." + directory.filename().string() + ".draft");
  if (Result<void> cleared = remove_directory(files, draft, content); !cleared.ok()) return cleared;
  if (Result<void> made = files.make_directory(draft); !made.ok()) return made;
  Result<void> written = content.write(draft);
  if (written.ok()) written = files.sync_directory(draft);
  if (!written.ok()) {
    (void)remove_directory(files, draft, content);  // what went wrong first is what counts
    return written;
  }
  return put_in_place(files, draft, directory, content);
}

Result<void> write_text(Files& files, const path& path, const std::string& text) {
  Result<std::unique_ptr<File>> file = files.create(path);
  if (!file.ok()) return file.error();
  const Result<void> written = write_all(*file.value(), 0, std::as_bytes(std::span(text)), path);
  if (!written.ok()) return written.error();
  return file.value()->sync();
}

}  // namespace bottomless::train
