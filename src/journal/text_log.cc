#include "journal/text_log.h"

#include <utility>

namespace bottomless::journal {
namespace {

Error described(const Error& error, const std::filesystem::path& path) {
  if (error.code != Code::no_space) return error;
  return {Code::no_space, "write '" + path.string() +
                              "': the disk is full; make room there, or name another directory"};
}

}  // namespace

TextLog::TextLog(std::unique_ptr<File> file, std::filesystem::path path, Bytes size)
    : file_(std::move(file)), path_(std::move(path)), size_(size) {}

Result<TextLog> TextLog::begin(Files& files, const std::filesystem::path& path,
                               std::string_view kept) {
  std::filesystem::path draft = path;
  draft += ".draft";
  (void)files.remove(draft);  // of a process that was killed
  Result<std::unique_ptr<File>> file = files.create(draft);
  if (!file.ok()) return described(file.error(), path);
  const auto bytes = std::as_bytes(std::span(kept));
  Result<void> done = write_all(*file.value(), 0, bytes, draft);
  if (done.ok()) done = file.value()->sync();
  if (done.ok()) done = files.rename(draft, path);
  if (!done.ok()) {
    (void)files.remove(draft);
    return described(done.error(), path);
  }
  done = files.sync_directory(path.parent_path());
  if (!done.ok()) return described(done.error(), path);
  return TextLog(std::move(file).value(), path, kept.size());
}

Result<void> TextLog::append(std::string_view piece) {
  const Result<void> written = write_all(*file_, size_, std::as_bytes(std::span(piece)), path_);
  if (!written.ok()) return described(written.error(), path_);
  size_ += piece.size();
  return {};
}

}  // namespace bottomless::journal
