#include "base/text_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.h"

namespace bottomless {
namespace {

class TextFile : public testing::Test {
 protected:
  std::filesystem::path with(const std::string& content) const {
    std::ofstream(directory_.path() / "file") << content;
    return directory_.path() / "file";
  }
  TemporaryDirectory directory_;
};

TEST_F(TextFile, FirstLineIsWithoutItsEnd) {
  EXPECT_EQ(first_line(with("one two\nthree\n")), "one two");
  EXPECT_EQ(first_line(with("no end")), "no end");
  EXPECT_EQ(first_line(with("")), "");
}

TEST_F(TextFile, FieldIsFoundInEveryManner) {
  const auto file = with("anon 5\nMemTotal:       16 kB\nmodel name\t: A CPU, fast\nempty:\n");
  EXPECT_EQ(field(file, "anon"), "5");
  EXPECT_EQ(field(file, "MemTotal"), "16 kB");
  EXPECT_EQ(field(file, "model name"), "A CPU, fast");
  EXPECT_EQ(field(file, "empty"), "");
  EXPECT_EQ(field(file, "other"), "");
}

TEST_F(TextFile, FieldIsNotTakenForALongerOne) {
  const auto file = with("VmDataLimit: 7\nVmData: 3\n");
  EXPECT_EQ(field(file, "VmData"), "3");
  EXPECT_EQ(field(file, "Vm"), "");
}

TEST_F(TextFile, ByteFieldKnowsTheUnit) {
  const auto file = with("plain 5000\nMemTotal:  16 kB\nname: text\n");
  EXPECT_EQ(byte_field(file, "plain"), 5000u);
  EXPECT_EQ(byte_field(file, "MemTotal"), 16_KiB);
  EXPECT_FALSE(byte_field(file, "name"));
  EXPECT_FALSE(byte_field(file, "other"));
}

TEST_F(TextFile, OfAFileThatIsNotThereIsEmpty) {
  EXPECT_EQ(first_line(directory_.path() / "none"), "");
  EXPECT_EQ(field(directory_.path() / "none", "key"), "");
}

}  // namespace
}  // namespace bottomless
