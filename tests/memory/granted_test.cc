#include "memory/granted.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <fstream>

#include "memory/heap.h"
#include "support/process.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

// A made-up /proc and /sys: a machine with 8 GiB free, and nothing that limits the process.
class Granted : public testing::Test {
 protected:
  Granted() {
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
    write("proc/self/status", "Name:\ttest\nVmSize:\t  200 kB\nVmData:\t  100 kB\n");
  }
  void write(const std::string& file, const std::string& content) {
    std::filesystem::create_directories((root_.path() / file).parent_path());
    std::ofstream(root_.path() / file) << content;
  }
  Grant grant() const { return granted_memory(root_.path()); }

  TemporaryDirectory root_;
};

TEST_F(Granted, IsWhatTheMachineHasFree) {
  EXPECT_EQ(grant().bytes, 8_GiB);
  EXPECT_EQ(grant().set_by, "free memory of the machine");
  EXPECT_LT(automatic_limit(grant()), 8_GiB);
  EXPECT_GT(automatic_limit(grant()), 6_GiB);
}

TEST_F(Granted, IsSharedByTheRanksOfThisMachine) {
  const Bytes alone = automatic_limit(grant());
  for (const auto& [name, value] :
       {std::pair("RANK", "0"), {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}})
    setenv(name, value, 1);
  EXPECT_EQ(automatic_limit(grant()), alone / 4);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}) unsetenv(name);
}

TEST_F(Granted, IsWhatItsControlGroupLeaves) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "4294967296\n");
  write("sys/fs/cgroup/job/step/memory.current", "1073741824\n");
  EXPECT_EQ(grant().bytes, 3_GiB);
  EXPECT_EQ(grant().set_by, "memory.max of control group /job/step");
}

TEST_F(Granted, CountsFilesInTheCacheAsFree) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "4294967296\n");
  write("sys/fs/cgroup/job/memory.current", "3221225472\n");
  write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 2147483648\nactive_file 1\n");
  EXPECT_EQ(grant().bytes, 3_GiB);
}

TEST_F(Granted, IsTheLeastOfAllGroupsAbove) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  write("sys/fs/cgroup/a/b/c/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.max", "6442450944\n");
  write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  EXPECT_EQ(grant().bytes, 2_GiB);
  EXPECT_EQ(grant().set_by, "memory.max of control group /a");
}

TEST_F(Granted, KnowsTheFirstVersionOfControlGroups) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/x\n7:memory:/job\n1:name=systemd:/y\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "536870912\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "total_inactive_file 268435456\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // its "unlimited"
  EXPECT_EQ(grant().bytes, 768_MiB);
}

TEST_F(Granted, InAContainerFindsItsOwnGroupAtTheMount) {
  write("proc/self/cgroup", "0::/system.slice/container-17\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  EXPECT_EQ(grant().bytes, 1_GiB);
}

TEST_F(Granted, IsNothingWhenTheGroupIsFull) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "1000000\n");
  write("sys/fs/cgroup/job/memory.current", "2000000\n");
  EXPECT_EQ(grant().bytes, 0u);
}

TEST_F(Granted, IsNothingWhenTheMachineHasNothingFree) {
  write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    0 kB\n");
  EXPECT_EQ(grant().bytes, 0u);
}

TEST_F(Granted, TakesMoreThanCanBeCountedForUnlimited) {
  write("proc/meminfo", "MemAvailable:    18014398509481985 kB\n");  // 2^64 + 1024 bytes
  EXPECT_GT(grant().bytes, 1_TiB);
}

TEST_F(Granted, PassesOverWhatItCannotRead) {
  write("proc/self/cgroup", "rubbish\n0::/job\n::\n");
  write("sys/fs/cgroup/job/memory.max", "many\n");
  EXPECT_EQ(grant().bytes, 8_GiB);
}

TEST_F(Granted, TellsHowManyMappingsTheKernelAllows) {
  EXPECT_EQ(granted_mappings(root_.path()), kUsualMappings) << "it does not tell";
  write("proc/sys/vm/max_map_count", "12345\n");
  EXPECT_EQ(granted_mappings(root_.path()), 12345u);
}

TEST_F(Granted, ControlGroupLimitIsTheLeastWhateverIsInUse) {
  EXPECT_FALSE(control_group_limit(root_.path()));
  write("proc/self/cgroup", "7:memory:/\n0::/a/b\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  EXPECT_FALSE(control_group_limit(root_.path()));
  write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  write("sys/fs/cgroup/a/memory.current", "1073741824\n");
  ASSERT_TRUE(control_group_limit(root_.path()));
  EXPECT_EQ(control_group_limit(root_.path())->bytes, 2_GiB);
  EXPECT_EQ(control_group_limit(root_.path())->set_by, "memory.max of control group /a");
}

TEST_F(Granted, RespectsResourceLimits) {
  const std::string said = in_child([&] {
    const rlimit data{1_GiB, RLIM_INFINITY};
    setrlimit(RLIMIT_DATA, &data);
    const Grant grant = this->grant();
    return std::to_string(grant.bytes) + " " + grant.set_by;
  });
  EXPECT_EQ(said, std::to_string(1_GiB - 100_KiB) + " RLIMIT_DATA (ulimit -d)");
}

TEST(GrantedHere, IsPositiveAndAtMostWhatThereIs) {
  const Grant grant = granted_memory();
  EXPECT_GT(grant.bytes, 0u);
  EXPECT_LT(grant.bytes, 1_TiB * 64);
}

}  // namespace
}  // namespace bottomless
