#include "io/disk_measure.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/aligned_buffer.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

constexpr Load kShort{.size = 256_KiB, .depth = 4, .seconds = 0.02};
constexpr double kLong = 1e9;

class DiskMeasure : public testing::Test {
 protected:
  WorkingFile open(Bytes bytes) {
    Result<WorkingFile> file = WorkingFile::open(directory_.path(), bytes);
    EXPECT_TRUE(file.ok());
    return std::move(file).value();
  }
  TemporaryDirectory directory_;
};

TEST_F(DiskMeasure, FillsTheWholeFileWithData) {
  WorkingFile file = open(9_MiB + 4_KiB);  // no multiple of a request
  ASSERT_TRUE(file.fill(kLong).ok());
  EXPECT_EQ(file.written(), 9_MiB + 4_KiB);
  AlignedBuffer page(4_KiB);
  for (const Bytes at : {Bytes{0}, 4_MiB, 9_MiB}) {
    ASSERT_EQ(pread(file.fd(), page.data(), 4_KiB, static_cast<off_t>(at)), 4096);
    size_t zeros = 0;
    for (size_t i = 0; i < page.size(); ++i) zeros += page[i] == std::byte{0} ? 1 : 0;
    EXPECT_LT(zeros, 200u) << "at " << at;
  }
}

TEST_F(DiskMeasure, FillsOnlyAsLongAsItMay) {
  WorkingFile file = open(256_MiB);
  ASSERT_TRUE(file.fill(0).ok());
  EXPECT_GT(file.written(), 0u);
  EXPECT_LT(file.written(), 256_MiB);
}

TEST_F(DiskMeasure, EveryPatternMovesBytes) {
  std::vector<WorkingFile> files;
  files.push_back(open(8_MiB));
  ASSERT_TRUE(files[0].fill(kLong).ok());
  for (const Pattern pattern : {Pattern::read, Pattern::write, Pattern::mixed}) {
    Load load = kShort;
    load.pattern = pattern;
    const Result<Rate> rate = measure(files, load);
    ASSERT_TRUE(rate.ok()) << rate.error().message;
    EXPECT_GE(rate.value().bytes, load.depth * load.size) << name_of(pattern);
    EXPECT_EQ(rate.value().bytes % load.size, 0u);
    EXPECT_GE(rate.value().seconds, load.seconds);
    EXPECT_GT(rate.value().cpu_seconds, 0);
  }
}

TEST_F(DiskMeasure, ReadingChangesNothingAndWritingDoes) {
  std::vector<WorkingFile> files;
  files.push_back(open(1_MiB));
  ASSERT_TRUE(files[0].fill(kLong).ok());
  const auto content = [&] {
    AlignedBuffer buffer(1_MiB);
    EXPECT_EQ(pread(files[0].fd(), buffer.data(), 1_MiB, 0), static_cast<ssize_t>(1_MiB));
    return std::vector(buffer.span().begin(), buffer.span().end());
  };
  const auto before = content();
  Load load{.size = 1_MiB, .depth = 1, .seconds = 0};
  load.pattern = Pattern::read;
  ASSERT_TRUE(measure(files, load).ok());
  EXPECT_EQ(content(), before);
  // More slots than before, so that other memory is written.
  load = {.pattern = Pattern::write, .size = 512_KiB, .depth = 100, .seconds = 0};
  ASSERT_TRUE(measure(files, load).ok());
  EXPECT_NE(content(), before);
}

TEST_F(DiskMeasure, SeveralFilesAreAddedUp) {
  const TemporaryDirectory other;
  std::vector<WorkingFile> files;
  files.push_back(open(8_MiB));
  files.push_back(std::move(WorkingFile::open(other.path(), 8_MiB)).value());
  for (WorkingFile& file : files) ASSERT_TRUE(file.fill(kLong).ok());
  Load load = kShort;
  load.seconds = 0;  // each slot has exactly one request
  const Result<Rate> rate = measure(files, load);
  ASSERT_TRUE(rate.ok()) << rate.error().message;
  EXPECT_EQ(rate.value().bytes, 2 * load.depth * load.size);
}

TEST_F(DiskMeasure, TransfersThatFailAreReported) {
  std::vector<WorkingFile> files;
  files.push_back(open(8_MiB));
  ASSERT_TRUE(files[0].fill(kLong).ok());
  ASSERT_EQ(ftruncate(files[0].fd(), 0), 0);
  const Result<Rate> rate = measure(files, kShort);
  ASSERT_FALSE(rate.ok());
  EXPECT_NE(rate.error().message.find(directory_.path().string()), std::string::npos);
}

TEST_F(DiskMeasure, LeavesNoName) {
  WorkingFile file = open(8_MiB);
  ASSERT_TRUE(file.fill(kLong).ok());
  struct stat about {};
  ASSERT_EQ(fstat(file.fd(), &about), 0);
  EXPECT_EQ(about.st_nlink, 0u);
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(DiskMeasure, SaysWhenThereIsTooLittleSpace) {
  const Result<WorkingFile> file = WorkingFile::open(directory_.path(), 1_TiB * 1024);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::no_space);
  EXPECT_NE(file.error().message.find("free there"), std::string::npos);
}

TEST_F(DiskMeasure, SaysWhenThereIsNoDirectory) {
  const Result<WorkingFile> file = WorkingFile::open(directory_.path() / "none", 8_MiB);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::not_found);
}

}  // namespace
}  // namespace bottomless
