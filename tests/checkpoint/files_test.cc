// The operating system's files keep the promises of the interface, which the simulated ones only claim.
#include "checkpoint/files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "support/simulated_files.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

class FilesTest : public testing::TestWithParam<const char*> {
 protected:
  FilesTest() {
    if (GetParam() == std::string("simulated")) {
      files_ = std::make_unique<SimulatedFiles>();
      folder_ = "/folder";
    } else {
      files_ = make_files();
      folder_ = directory_.path() / "folder";
    }
    EXPECT_TRUE(files_->make_directory(folder_).ok());
  }
  static std::span<const std::byte> bytes(std::string_view text) {
    return std::as_bytes(std::span(text));
  }
  std::string read(const Files::Path& path) {
    auto file = files_->open(path).value();
    std::string text(file->size().value(), ' ');
    EXPECT_TRUE(read_all(*file, 0, std::as_writable_bytes(std::span(text)), path).ok());
    return text;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<Files> files_;
  Files::Path folder_;
};

TEST_P(FilesTest, WhatIsWrittenIsRead) {
  const auto path = folder_ / "a";
  auto file = files_->create(path).value();
  ASSERT_TRUE(file->allocate(10).ok());
  EXPECT_EQ(file->size().value(), 10u);
  ASSERT_TRUE(write_all(*file, 4, bytes("four"), path).ok());
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(read(path), std::string("\0\0\0\0four\0\0", 10));
}

TEST_P(FilesTest, TheEndOfAFileIsCorruptToWhoWantsMore) {
  const auto path = folder_ / "a";
  ASSERT_TRUE(write_all(*files_->create(path).value(), 0, bytes("four"), path).ok());
  std::array<std::byte, 5> five{};
  const auto read = read_all(*files_->open(path).value(), 0, five, path);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, Code::corrupt);
  EXPECT_NE(read.error().message.find("offset 4"), std::string::npos) << read.error().message;
  EXPECT_NE(read.error().message.find(path.string()), std::string::npos);
}

TEST_P(FilesTest, NamesAreCreatedOnceReplacedAndRemoved) {
  const auto a = folder_ / "a", b = folder_ / "b";
  EXPECT_EQ(files_->open(a).error().code, Code::not_found);
  ASSERT_TRUE(write_all(*files_->create(a).value(), 0, bytes("A"), a).ok());
  ASSERT_TRUE(write_all(*files_->create(b).value(), 0, bytes("B"), b).ok());
  EXPECT_FALSE(files_->create(a).ok());
  auto names = files_->list(folder_).value();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(files_->rename(a, b).ok());
  EXPECT_EQ(read(b), "A");
  EXPECT_TRUE(files_->sync_directory(folder_).ok());
  EXPECT_TRUE(files_->remove(b).ok());
  EXPECT_EQ(files_->remove(b).error().code, Code::not_found);
  EXPECT_TRUE(files_->list(folder_).value().empty());
}

TEST_P(FilesTest, DirectoriesThatAreThereAreWell) {
  EXPECT_TRUE(files_->make_directory(folder_).ok());
  EXPECT_EQ(files_->make_directory(folder_ / "b" / "c").error().code, Code::not_found);
  EXPECT_EQ(files_->sync_directory(folder_ / "b").error().code, Code::not_found);
  EXPECT_EQ(files_->list(folder_ / "b").error().code, Code::not_found);
}

INSTANTIATE_TEST_SUITE_P(Each, FilesTest, testing::Values("system", "simulated"),
                         [](const auto& info) { return std::string(info.param); });

TEST(SystemFiles, ADirectoryIsNoFile) {
  const TemporaryDirectory directory;
  const auto files = make_files();
  auto opened = files->open(directory.path());
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened.value()->size().error().code, Code::invalid_argument);
}

TEST(SystemFiles, ALinkIsNotWrittenThrough) {
  const TemporaryDirectory directory;
  std::ofstream(directory.path() / "precious") << "kept";
  std::filesystem::create_symlink("precious", directory.path() / "link");
  EXPECT_FALSE(make_files()->create(directory.path() / "link").ok());
}

// Of the simulated power cut itself, on which other tests rest.
class PowerCut : public testing::Test {
 protected:
  bool survives(const char* name, SimulatedFiles::Survives what) {
    return files_.after_power_cut(what, random_)->open(name).ok();
  }
  SimulatedFiles files_;
  Random random_{11};
};

TEST_F(PowerCut, KeepsNamesWhoseDirectoryWasSynced) {
  ASSERT_TRUE(files_.create("/a").ok());
  ASSERT_TRUE(files_.sync_directory("/").ok());
  ASSERT_TRUE(files_.create("/b").ok());
  EXPECT_TRUE(survives("/a", SimulatedFiles::Survives::nothing));
  EXPECT_FALSE(survives("/b", SimulatedFiles::Survives::nothing));
  EXPECT_TRUE(survives("/b", SimulatedFiles::Survives::everything));
  ASSERT_TRUE(files_.remove("/a").ok());
  EXPECT_TRUE(survives("/a", SimulatedFiles::Survives::nothing)) << "the removal was not synced";
}

TEST_F(PowerCut, KeepsBytesWhoseFileWasSynced) {
  auto file = files_.create("/a").value();
  ASSERT_TRUE(files_.sync_directory("/").ok());
  const std::string text = "text";
  ASSERT_TRUE(write_all(*file, 0, std::as_bytes(std::span(text)), "/a").ok());
  const auto size_left = [&] {
    const auto left = files_.after_power_cut(SimulatedFiles::Survives::nothing, random_);
    return left->open("/a").value()->size().value();
  };
  EXPECT_EQ(size_left(), 0u);
  ASSERT_TRUE(file->sync().ok());
  EXPECT_EQ(size_left(), 4u);
}

TEST_F(PowerCut, LosesForGoodWhatASyncFailedToKeep) {
  auto file = files_.create("/a").value();
  ASSERT_TRUE(files_.sync_directory("/").ok());
  const std::string text = "text";
  ASSERT_TRUE(write_all(*file, 0, std::as_bytes(std::span(text)), "/a").ok());
  files_.faults = {FileFault::io_error, 0};
  EXPECT_FALSE(file->sync().ok());
  EXPECT_TRUE(file->sync().ok()) << "as on Linux, the second one hides it";
  const auto left = files_.after_power_cut(SimulatedFiles::Survives::everything, random_);
  EXPECT_EQ(left->open("/a").value()->size().value(), 0u);
}

}  // namespace
}  // namespace bottomless
