#include "os/control_groups.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_directory.h"

namespace bottomless {
namespace {

std::vector<std::string> names(const std::string& membership, const std::string& controller) {
  TemporaryDirectory root;
  std::filesystem::create_directories(root.path() / "proc/self");
  std::ofstream(root.path() / "proc/self/cgroup") << membership;
  std::vector<std::string> found;
  for (const ControlGroup& group : control_groups(controller, root.path())) {
    const auto below = group.folder.lexically_relative(root.path() / "sys/fs/cgroup").string();
    found.push_back(group.name + " in " + below);
  }
  return found;
}

using Names = std::vector<std::string>;

TEST(ControlGroups, AreItsOwnAndAllAbove) {
  EXPECT_EQ(names("0::/a/b\n", "cpu"), (Names{"/a/b in a/b", "/a in a", "/ in ."}));
}

TEST(ControlGroups, OfTheFirstVersionAreThoseOfTheController) {
  EXPECT_EQ(names("9:cpu,cpuacct:/x\n7:memory:/job\n1:name=systemd:/y\n", "cpu"),
            (Names{"/x in cpu/x", "/ in cpu/"}));
  EXPECT_EQ(names("9:cpuacct:/x\n", "cpu"), Names{});
}

TEST(ControlGroups, MayBeOfBothVersions) {
  EXPECT_EQ(names("7:memory:/\n0::/\n", "memory"), (Names{"/ in memory/", "/ in ."}));
}

TEST(ControlGroups, PassOverWhatCannotBeRead) {
  EXPECT_EQ(names("rubbish\n", "cpu"), Names{});
  EXPECT_EQ(names("", "cpu"), Names{});
}

}  // namespace
}  // namespace bottomless
