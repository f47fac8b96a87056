#include "checkpoint/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>

#include "base/errno_error.h"
#include "base/unique_fd.h"

namespace bottomless {
namespace {

using Path = Files::Path;

constexpr mode_t kFileMode = 0666, kDirectoryMode = 0777;  // less what the user's umask takes
constexpr Bytes kMostBytes = std::numeric_limits<off_t>::max();

std::string quoted(const Path& path) { return "'" + path.string() + "'"; }

// Repeats a system call that a signal interrupted.
template <class Call>
auto uninterrupted(Call call) {
  auto answer = call();
  while (answer < 0 && errno == EINTR) answer = call();
  return answer;
}

Error too_far(const Path& path, Bytes offset) {
  return errno_error(EFBIG, "reach offset " + std::to_string(offset) + " of " + quoted(path));
}

class SystemFile final : public File {
 public:
  SystemFile(UniqueFd fd, Path path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Result<Bytes> size() override {
    struct stat found {};
    if (::fstat(fd_.get(), &found) != 0) return failed("ask for the size of");
    if (!S_ISREG(found.st_mode)) {
      return Error{Code::invalid_argument,
                   "open " + quoted(path_) + ": it is no ordinary file; name one that is"};
    }
    return static_cast<Bytes>(found.st_size);
  }

  Result<size_t> read_some(Bytes offset, std::span<std::byte> into) override {
    if (offset > kMostBytes) return too_far(path_, offset);
    const ssize_t moved = uninterrupted(
        [&] { return ::pread(fd_.get(), into.data(), into.size(), static_cast<off_t>(offset)); });
    if (moved < 0) return failed("read " + format_bytes(into.size()) + at(offset));
    return static_cast<size_t>(moved);
  }

  Result<size_t> write_some(Bytes offset, std::span<const std::byte> from) override {
    if (offset > kMostBytes) return too_far(path_, offset);
    const ssize_t moved = uninterrupted(
        [&] { return ::pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset)); });
    if (moved < 0) return failed("write " + format_bytes(from.size()) + at(offset), kMakeRoom);
    return static_cast<size_t>(moved);
  }

  Result<void> allocate(Bytes bytes) override {
    if (bytes > kMostBytes) return too_far(path_, bytes);
    const auto length = static_cast<off_t>(bytes);
    if (length == 0) return {};
    int answer = uninterrupted([&] { return ::fallocate(fd_.get(), 0, 0, length); });
    if (answer != 0 && errno == EOPNOTSUPP) {
      answer = uninterrupted([&] { return ::ftruncate(fd_.get(), length); });
    }
    if (answer != 0) return failed("make room for " + format_bytes(bytes) + " in", kMakeRoom);
    return {};
  }

  Result<void> sync() override {
    // Not repeated, whatever the answer: after a failure the kernel may have dropped what it could not write, and the
    // next call would succeed.
    if (::fsync(fd_.get()) != 0) return failed("bring to the disk");
    return {};
  }

 private:
  static constexpr std::string_view kMakeRoom =
      "the old checkpoint is kept until the new one is complete: both must fit";

  static std::string at(Bytes offset) { return " at offset " + std::to_string(offset) + " of"; }
  Error failed(const std::string& attempted, std::string_view advice = {}) const {
    return errno_error(errno, attempted + " " + quoted(path_),
                       errno == ENOSPC || errno == EDQUOT ? advice : std::string_view{});
  }

  const UniqueFd fd_;
  const Path path_;
};

class SystemFiles final : public Files {
 public:
  Result<std::unique_ptr<File>> open(const Path& path) override {
    return open(path, O_RDONLY, "open");
  }

  Result<std::unique_ptr<File>> create(const Path& path) override {
    return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, "create");
  }

  Result<void> rename(const Path& from, const Path& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return {};
    return errno_error(errno, "rename " + quoted(from) + " to " + quoted(to));
  }

  Result<void> remove(const Path& path) override {
    if (::unlink(path.c_str()) == 0) return {};
    return errno_error(errno, "remove " + quoted(path));
  }

  Result<void> make_directory(const Path& path) override {
    if (::mkdir(path.c_str(), kDirectoryMode) == 0 || errno == EEXIST) return {};
    return errno_error(errno, "make the directory " + quoted(path),
                       "name one whose parent exists and that you can write to");
  }

  Result<std::vector<std::string>> list(const Path& directory) override {
    struct Close {
      void operator()(DIR* stream) const { ::closedir(stream); }
    };
    const std::unique_ptr<DIR, Close> stream(::opendir(directory.c_str()));
    std::vector<std::string> names;
    if (stream == nullptr) return errno_error(errno, "list the directory " + quoted(directory));
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) break;
      const std::string_view name(entry->d_name);
      if (name != "." && name != "..") names.emplace_back(name);
    }
    if (errno != 0) return errno_error(errno, "list the directory " + quoted(directory));
    return names;
  }

  Result<void> sync_directory(const Path& directory) override {
    const UniqueFd fd(uninterrupted(
        [&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    // Some network file systems know no such thing, and need none: their servers keep names at once.
    if (fd.valid() && (::fsync(fd.get()) == 0 || errno == EINVAL)) return {};
    return errno_error(errno,
                       "bring the names in the directory " + quoted(directory) + " to the disk",
                       "name one that you can read and write");
  }

 private:
  static Result<std::unique_ptr<File>> open(const Path& path, int flags, const char* attempted) {
    UniqueFd fd(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kFileMode); }));
    if (!fd.valid()) return errno_error(errno, std::string(attempted) + " " + quoted(path));
    return std::unique_ptr<File>(std::make_unique<SystemFile>(std::move(fd), path));
  }
};

}  // namespace

std::unique_ptr<Files> make_files() { return std::make_unique<SystemFiles>(); }

Result<void> read_all(File& file, Bytes offset, std::span<std::byte> into, const Path& where) {
  while (!into.empty()) {
    const Result<size_t> moved = file.read_some(offset, into);
    if (!moved.ok()) return moved.error();
    if (moved.value() == 0) {
      return Error{Code::corrupt, "read " + format_bytes(into.size()) + " at offset " +
                                      std::to_string(offset) + " of " + quoted(where) +
                                      ": the file ends there; it was cut short: the file is "
                                      "corrupt; download or write it again"};
    }
    offset += moved.value();
    into = into.subspan(moved.value());
  }
  return {};
}

Result<void> write_all(File& file, Bytes offset, std::span<const std::byte> from,
                       const Path& where) {
  while (!from.empty()) {
    const Result<size_t> moved = file.write_some(offset, from);
    if (!moved.ok()) return moved.error();
    if (moved.value() == 0) {
      return Error{Code::io, "write " + format_bytes(from.size()) + " at offset " +
                                 std::to_string(offset) + " of " + quoted(where) +
                                 ": the file system took nothing and gave no reason"};
    }
    offset += moved.value();
    from = from.subspan(moved.value());
  }
  return {};
}

Result<std::string> read_text(Files& files, const Path& path) {
  constexpr Bytes kMostTextBytes = 256_MiB;
  const Result<std::unique_ptr<File>> file = files.open(path);
  if (!file.ok()) return file.error();
  const Result<Bytes> size = file.value()->size();
  if (!size.ok()) return size.error();
  if (size.value() > kMostTextBytes) {
    return Error{Code::corrupt, "read " + quoted(path) + ": it has " + format_bytes(size.value()) +
                                    ", and such files have at most " +
                                    format_bytes(kMostTextBytes)};
  }
  std::string text(size.value(), '\0');
  const Result<void> got =
      read_all(*file.value(), 0, std::as_writable_bytes(std::span(text)), path);
  if (!got.ok()) return got.error();
  return text;
}

}  // namespace bottomless
