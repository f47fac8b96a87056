#include "io/scratch_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "base/errno_error.h"

namespace bottomless {
namespace {

constexpr mode_t kOwnerOnly = 0600;

// A file system without O_TMPFILE: create exclusively under a random name and unlink at once.
int open_and_unlink(const std::filesystem::path& directory, int flags) {
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    const std::string path = (directory / (".bottomless-" + std::to_string(random()))).string();
    const int fd = ::open(path.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, kOwnerOnly);
    if (fd >= 0) {
      ::unlink(path.c_str());
      return fd;
    }
    if (errno == EEXIST) continue;
    // Where O_DIRECT is not supported, the open fails after the file was created.
    const int failed = errno;
    ::unlink(path.c_str());
    errno = failed;
    return -1;
  }
  return -1;
}

int open_nameless(const std::filesystem::path& directory, int flags) {
  const int fd = ::open(directory.c_str(), flags | O_TMPFILE, kOwnerOnly);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  return open_and_unlink(directory, flags);
}

}  // namespace

Result<ScratchFile> ScratchFile::open(const std::filesystem::path& directory) {
  const int flags = O_RDWR | O_CLOEXEC;
  UniqueFd direct(open_nameless(directory, flags | O_DIRECT));
  if (direct.valid()) return ScratchFile(directory, std::move(direct), Caching::direct);
  if (errno == EINVAL) {
    UniqueFd buffered(open_nameless(directory, flags));
    if (buffered.valid()) return ScratchFile(directory, std::move(buffered), Caching::buffered);
  }
  return errno_error(errno, "open a scratch file in '" + directory.string() + "'",
                     "name an existing directory that you can write to (--disk)");
}

Result<void> ScratchFile::grow(Bytes bytes) {
  if (bytes <= bytes_) return {};
  int failed = 0;
  do {
    failed = ::fallocate(fd(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed == EOPNOTSUPP) failed = ::ftruncate(fd(), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  if (failed != 0) {
    return errno_error(failed,
                       "grow the scratch file in '" + directory_.string() + "' from " +
                           format_bytes(bytes_) + " to " + format_bytes(bytes),
                       "free space there or name another directory (--disk)");
  }
  bytes_ = bytes;
  return {};
}

}  // namespace bottomless
