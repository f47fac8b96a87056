#include "io/scratch_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <string>

#include "support/aligned_buffer.h"
#include "support/process.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

TEST(ScratchFile, HasNoNameAndBelongsToTheOwnerOnly) {
  const TemporaryDirectory directory;
  Result<ScratchFile> file = ScratchFile::open(directory.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(directory.entries(), 0u);
  struct stat status {};
  ASSERT_EQ(::fstat(file.value().fd(), &status), 0);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_NE(::fcntl(file.value().fd(), F_GETFD) & FD_CLOEXEC, 0)
      << "a child program must not inherit it";
  EXPECT_EQ(file.value().directory(), directory.path());
}

TEST(ScratchFile, GrowsAndKeepsItsContent) {
  const TemporaryDirectory directory;
  Result<ScratchFile> opened = ScratchFile::open(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ScratchFile file = std::move(opened).value();
  EXPECT_EQ(file.bytes(), 0u);
  ASSERT_TRUE(file.grow(64_KiB).ok());
  AlignedBuffer buffer(64_KiB);
  buffer.fill(1);
  ASSERT_EQ(::pwrite(file.fd(), buffer.data(), 64_KiB, 0), 64_KiB);
  ASSERT_TRUE(file.grow(1_MiB).ok());
  EXPECT_EQ(file.bytes(), 1_MiB);
  ASSERT_TRUE(file.grow(128_KiB).ok()) << "never shrinks";
  EXPECT_EQ(file.bytes(), 1_MiB);
  AlignedBuffer back(64_KiB);
  ASSERT_EQ(::pread(file.fd(), back.data(), 64_KiB, 0), 64_KiB);
  EXPECT_EQ(back.mismatch(1), back.size());
  struct stat status {};
  ASSERT_EQ(::fstat(file.fd(), &status), 0);
  EXPECT_GE(static_cast<Bytes>(status.st_blocks) * 512, 1_MiB)
      << "the room must be there, not only promised";
}

TEST(ScratchFile, AMissingDirectoryIsAnErrorThatNamesIt) {
  const Result<ScratchFile> file = ScratchFile::open("/nowhere/at/all");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::not_found);
  EXPECT_NE(file.error().message.find("/nowhere/at/all"), std::string::npos)
      << file.error().message;
  EXPECT_NE(file.error().message.find("--disk"), std::string::npos) << file.error().message;
}

TEST(ScratchFile, AFileInPlaceOfADirectoryIsAnError) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  std::ofstream(path) << "content";
  const Result<ScratchFile> file = ScratchFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::not_found);
}

TEST(ScratchFile, ADirectoryThatCannotHoldFilesIsAnError) {
  const Result<ScratchFile> file = ScratchFile::open("/proc/self");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("/proc/self"), std::string::npos) << file.error().message;
}

TEST(ScratchFile, AFileSizeLimitIsAFullDiskAndTheFileStaysUsable) {
  const TemporaryDirectory directory;
  EXPECT_EQ(in_child([&]() -> std::string {
              Result<ScratchFile> file = ScratchFile::open(directory.path());
              if (!file.ok()) return file.error().message;
              ::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{1_MiB, 1_MiB};
              if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "no limit";
              const Result<void> grown = file.value().grow(2_MiB);
              if (grown.ok()) return "grew past the limit";
              if (grown.error().code != Code::no_space) return grown.error().message;
              if (grown.error().message.find(directory.path().string()) == std::string::npos) {
                return grown.error().message;
              }
              if (grown.error().message.find("2 MiB") == std::string::npos)
                return grown.error().message;
              if (file.value().bytes() != 0) return "counts room that is not there";
              const Result<void> less = file.value().grow(1_MiB);
              return less.ok() ? "fine" : less.error().message;
            }),
            "fine");
}

TEST(ScratchFile, AFullFileSystemIsAnError) {
  const TemporaryDirectory directory;
  const std::string answer = in_child([&]() -> std::string {
    if (std::string why = mount_privately("tmpfs", "size=1m", directory.path()); !why.empty())
      return "skip: " + why;
    Result<ScratchFile> file = ScratchFile::open(directory.path());
    if (!file.ok()) return file.error().message;
    const Result<void> grown = file.value().grow(2_MiB);
    if (grown.ok()) return "grew past the disk";
    if (grown.error().code != Code::no_space) return grown.error().message;
    const Result<void> less = file.value().grow(512_KiB);
    return less.ok() ? "fine" : less.error().message;
  });
  if (answer.starts_with("skip: ")) GTEST_SKIP() << answer;
  EXPECT_EQ(answer, "fine");
}

// ramfs has no O_DIRECT, and opening with O_CREAT and O_DIRECT there fails only after it has created the file.
TEST(ScratchFile, WithoutODirectItIsBufferedAndStillHasNoName) {
  const TemporaryDirectory directory;
  const std::string answer = in_child([&]() -> std::string {
    if (std::string why = mount_privately("ramfs", "", directory.path()); !why.empty())
      return "skip: " + why;
    Result<ScratchFile> file = ScratchFile::open(directory.path());
    if (!file.ok()) return file.error().message;
    if (file.value().caching() != Caching::buffered)
      return "skip: this kernel's ramfs has O_DIRECT";
    if (directory.entries() != 0) return "a name was left behind";
    const Result<void> grown = file.value().grow(64_KiB);
    return grown.ok() ? "fine" : grown.error().message;
  });
  if (answer.starts_with("skip: ")) GTEST_SKIP() << answer;
  EXPECT_EQ(answer, "fine");
}

}  // namespace
}  // namespace bottomless
