#include "cli/probes.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <cstddef>
#include <fstream>
#include <thread>

#include "optim/targets.h"
#include "support/process.h"
#include "support/temporary_directory.h"

namespace bottomless::cli {
namespace {

// "good: value" or "could be better: value -> advice".
std::string say(const Findings& findings, const std::string& topic) {
  for (const Finding& finding : findings) {
    if (finding.topic != topic) continue;
    EXPECT_EQ(finding.advice.empty(), finding.verdict == Verdict::good) << topic;
    const char* verdict = finding.verdict == Verdict::good      ? "good: "
                          : finding.verdict == Verdict::missing ? "missing: "
                                                                : "could be better: ";
    return verdict + finding.value + (finding.advice.empty() ? "" : " -> " + finding.advice);
  }
  return "no finding";
}

// A made-up machine of 16 GiB that could not be better.
class Probes : public testing::Test {
 protected:
  Probes() {
    write("proc/meminfo",
          "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n"
          "CommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB\n");
    write("proc/cpuinfo", "model name\t: A CPU\nflags\t\t: fpu avx2 avx512f\n");
    write("proc/sys/vm/overcommit_memory", "0\n");
    write("proc/sys/vm/max_map_count", "65530\n");
    write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    unsetenv("OMP_NUM_THREADS");
  }
  void write(const std::string& file, const std::string& content) {
    std::filesystem::create_directories((root_.path() / file).parent_path());
    std::ofstream(root_.path() / file) << content;
  }
  std::string memory(const std::string& topic) const {
    return say(probe_memory(root_.path()), topic);
  }
  std::string processor(const std::string& topic) const {
    return say(probe_processor(root_.path()), topic);
  }
  std::string disk(const std::string& what) const {
    return say(probe_directory(disk_.path(), root_.path()), "disk " + disk_.path().string() + what);
  }

  TemporaryDirectory root_;
  TemporaryDirectory disk_;
};

TEST_F(Probes, MemoryIsWhatTheMachineHas) {
  EXPECT_EQ(memory("memory"),
            "good: 8 GiB available of 16 GiB; --memory auto is 6.40 GiB (free memory of the "
            "machine)");
  EXPECT_EQ(memory("memory limit of control groups"), "good: none");
  EXPECT_EQ(memory("swap"), "good: none");
  EXPECT_EQ(memory("vm.overcommit_memory"), "good: 0");
  EXPECT_EQ(memory("huge pages"), "good: madvise");
  EXPECT_TRUE(memory("vm.max_map_count").starts_with("good: 65530"));
  EXPECT_EQ(memory("moving frames"), "good: mremap keeps pages");
}

TEST_F(Probes, MemoryLimitOfAControlGroupIsTold) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "4294967296\n");
  EXPECT_EQ(memory("memory limit of control groups"),
            "good: 4 GiB (memory.max of control group /job)");
}

TEST_F(Probes, SwapAsksForALimitBelowFreeMemory) {
  write("proc/meminfo", "MemTotal: 16777216 kB\nSwapTotal: 2097152 kB\n");
  EXPECT_TRUE(memory("swap").starts_with("could be better: 2 GiB -> keep --memory below"));
}

TEST_F(Probes, StrictOvercommitTellsWhatIsLeft) {
  write("proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_TRUE(
      memory("vm.overcommit_memory").starts_with("could be better: 2: the kernel grants 3 GiB"))
      << memory("vm.overcommit_memory");
}

TEST_F(Probes, HugePagesSwitchedOffOrMissing) {
  write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_TRUE(memory("huge pages").starts_with("could be better: switched off"));
  std::filesystem::remove(root_.path() / "sys/kernel/mm/transparent_hugepage/enabled");
  EXPECT_TRUE(memory("huge pages").starts_with("could be better: not in this kernel"));
}

TEST_F(Probes, TooFewMappings) {
  write("proc/sys/vm/max_map_count", "30000\n");
  EXPECT_TRUE(memory("vm.max_map_count").starts_with("could be better: 30000"));
}

TEST_F(Probes, ResourceLimits) {
  EXPECT_EQ(in_child([&] {
              const rlimit data{1_TiB * 1024, RLIM_INFINITY};  // room for a sanitizer's memory
              setrlimit(RLIMIT_DATA, &data);
              return memory("limit of data (ulimit -d)");
            }),
            "could be better: 1024 TiB -> keep --memory well below it, or lift it: ulimit -d "
            "unlimited");
}

TEST_F(Probes, ProcessorIsNamedWithItsVectors) {
  EXPECT_EQ(processor("processor"), "good: A CPU, SIMD: avx2, avx512f");
}

TEST_F(Probes, SimdOfTheOptimizersIsTheBestOrTheOneThatTheEnvironmentNames) {
  const std::vector<optim::Target> all = optim::targets();
  const std::string best(all.front().name), plainest(all.back().name);
  EXPECT_TRUE(processor("SIMD of the optimizers").starts_with("good: " + best + " of " + best));
  setenv("BOTTOMLESS_SIMD", plainest.c_str(), 1);
  EXPECT_TRUE(processor("SIMD of the optimizers")
                  .starts_with("could be better: " + plainest + " of " + best));
  setenv("BOTTOMLESS_SIMD", "MMX", 1);
  const std::string unknown = processor("SIMD of the optimizers");
  EXPECT_TRUE(unknown.starts_with("missing: choose the SIMD target 'MMX'")) << unknown;
  EXPECT_NE(unknown.find(best), std::string::npos) << unknown;
  unsetenv("BOTTOMLESS_SIMD");
}

TEST_F(Probes, CoresAreThoseOfTheAffinity) {
  const std::string said = in_child([&] {
    cpu_set_t all;
    sched_getaffinity(0, sizeof all, &all);
    for (int cpu = 0, kept = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all) && ++kept > 1) CPU_CLR(cpu, &all);
    }
    sched_setaffinity(0, sizeof all, &all);
    return processor("cores");
  });
  EXPECT_TRUE(said.starts_with("good: 1 of ")) << said;
  EXPECT_TRUE(said.ends_with("torch will use 1 thread")) << said;
}

TEST_F(Probes, CoresOfAQuotaAskForFewerThreads) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  setenv("OMP_NUM_THREADS", "4", 1);
  const std::string said = processor("cores");
  EXPECT_TRUE(said.starts_with("could be better: 1 of ")) << said;
  EXPECT_NE(said.find("OMP_NUM_THREADS=1, or threads will wait"), std::string::npos) << said;
}

TEST_F(Probes, CoresOfAQuotaOfTheFirstVersion) {
  write("proc/self/cgroup", "3:cpu,cpuacct:/job\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_TRUE(processor("cores").starts_with("good: 1 of ")) << processor("cores");
}

TEST_F(Probes, CoresLeftIdleByTheEnvironment) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "this machine has one core";
  setenv("OMP_NUM_THREADS", "1", 1);
  EXPECT_TRUE(processor("cores").ends_with("would use all of them")) << processor("cores");
}

TEST_F(Probes, GovernorThatSavesPower) {
  EXPECT_EQ(processor("processor speed"), "no finding");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
  EXPECT_EQ(processor("processor speed"), "good: performance");
  write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  EXPECT_TRUE(processor("processor speed").starts_with("could be better: powersave"));
}

TEST_F(Probes, GpusAreNotManaged) {
  write("dev/nvidiactl", "");
  EXPECT_TRUE(processor("GPU").starts_with("good: none"));
  write("dev/nvidia0", "");
  EXPECT_TRUE(
      processor("GPU").starts_with("could be better: /dev/nvidia0 -> this version moves CPU "
                                   "tensors only"));
}

// As a container's profile does it: the call is there, but not for us.
void forbid_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

TEST_F(Probes, UringForbiddenByAFilter) {
  const std::string said = in_child([] {
    forbid_uring();
    return say(probe_transfers(), "io_uring");
  });
  EXPECT_TRUE(said.starts_with("could be better: ")) << said;
  EXPECT_NE(said.find("seccomp profile"), std::string::npos) << said;
}

TEST_F(Probes, UringForbiddenByTheKernelsSetting) {
  write("proc/sys/kernel/io_uring_disabled", "2\n");
  const std::string said = in_child([&] {
    forbid_uring();
    return say(probe_transfers(root_.path()), "io_uring");
  });
  EXPECT_NE(said.find("(kernel.io_uring_disabled is 2) -> sysctl kernel.io_uring_disabled=0"),
            std::string::npos)
      << said;
}

TEST_F(Probes, DirectoryOnADisk) {
  write("proc/meminfo", "MemTotal: 1024 kB\n");
  write("proc/self/mounts", "/dev/sda / ext4 rw 0 0\n");
  struct stat about {};
  ASSERT_EQ(stat(disk_.path().c_str(), &about), 0);
  const std::string device = "sys/dev/block/" + std::to_string(major(about.st_dev)) + ":" +
                             std::to_string(minor(about.st_dev));
  write(device + "/queue/rotational", "0\n");
  EXPECT_TRUE(disk("").ends_with(" free")) << disk("");
  EXPECT_EQ(disk(" file system"), "good: ext4 on /dev/sda, solid-state");
  EXPECT_NE(disk(" speed").find(" GB/s, reads "), std::string::npos) << disk(" speed");
  EXPECT_EQ(disk_.entries(), 0u);
}

TEST_F(Probes, DirectoryWithLessSpaceThanMemory) {
  write("proc/meminfo", "MemTotal: 1099511627776000 kB\n");
  EXPECT_NE(disk("").find("less than the machine's memory"), std::string::npos) << disk("");
}

TEST_F(Probes, DirectoryInMemoryIsNoDisk) {
  const std::string point = disk_.path().string();
  write("proc/self/mounts",
        "/dev/sda / ext4 rw 0 0\ntmpfs " + point + " tmpfs rw 0 0\nx " + point + "x xfs rw 0 0\n");
  EXPECT_TRUE(disk(" file system").starts_with("could be better: tmpfs on tmpfs -> that is memory"))
      << disk(" file system");
}

TEST_F(Probes, DirectoryBehindANetworkOrInALayer) {
  write("proc/self/mounts", "host:/x / nfs4 rw 0 0\n");
  EXPECT_TRUE(disk(" file system").starts_with("could be better: nfs4 on host:/x"));
  write("proc/self/mounts", "me@host:/ / fuse.sshfs rw 0 0\n");
  EXPECT_TRUE(disk(" file system").starts_with("could be better: fuse.sshfs on me@host:/"));
  write("proc/self/mounts", "overlay / overlay rw 0 0\n");
  EXPECT_TRUE(disk(" file system").starts_with("could be better: overlay on overlay"));
}

TEST_F(Probes, DirectoryThatIsNotThere) {
  const auto none = disk_.path() / "none";
  EXPECT_TRUE(say(probe_directory(none), "disk " + none.string()).starts_with("missing: "));
}

TEST_F(Probes, SlowDiskSaysWhatItMeans) {
  const Rate fast{1_GiB, 0.5, 0};
  const Rate slow{1_GiB, 8, 0};
  EXPECT_EQ(say({judge_speed("speed", fast, fast)}, "speed"),
            "good: writes 2.15 GB/s, reads 2.15 GB/s");
  for (const auto& [writing, reading] : {std::pair(slow, fast), std::pair(fast, slow)}) {
    const std::string said = say({judge_speed("speed", writing, reading)}, "speed");
    EXPECT_NE(said.find("-> 8.0 s to move each GiB"), std::string::npos) << said;
  }
}

std::string precision(const Result<std::string>& said) {
  return say({judge_precision(said, "/bin/python3")}, "compute precision");
}

TEST_F(Probes, PrecisionIsSaidWithWhatWasMeasured) {
  EXPECT_EQ(
      precision(std::string("a warning\n{\"chosen\": \"bfloat16\", \"set_by\": \"measurement\", "
                            "\"speed\": {\"bfloat16\": [1.88, 2.13], \"float16\": [0.4, 0.401]}, "
                            "\"quiet\": true}\nanother\n")),
      "good: bfloat16 1.9 to 2.1 x float32, float16 0.4 x: bfloat16 is chosen");
  EXPECT_EQ(
      precision(std::string(
          R"({"chosen": "float32", "set_by": "measurement", "speed": {"float16": [0.021, 0.021]},)"
          R"( "quiet": false})")),
      "good: float16 0.021 x float32: float32 is chosen, as nothing is clearly faster; measured "
      "while others used the processor, so it will be once more");
  EXPECT_EQ(
      precision(std::string(
          R"({"chosen": "float16", "set_by": "BOTTOMLESS_COMPUTE_DTYPE", "speed": {}, "quiet": true})")),
      "good: neither bfloat16 nor float16 here: float16 is chosen by BOTTOMLESS_COMPUTE_DTYPE");
}

TEST_F(Probes, PrecisionThatCannotBeMeasuredSaysWhy) {
  EXPECT_EQ(precision(Error{Code::io, "run python3: it failed with 'No module named bottomless'"}),
            "could be better: not measured: the package bottomless is not in /bin/python3 -> "
            "install it there: it is the Python that programs are started with");
  EXPECT_EQ(precision(Error{Code::io, "run python3: it took too long"}),
            "could be better: not measured: run python3: it took too long -> see /bin/python3 -m "
            "bottomless.precision");
  for (const char* text : {"", "\n", "\n\n", "{", "[]", "{}", "1", R"({"chosen": 1})",
                           R"({"chosen": "x", "set_by": "y", "speed": {"z": "w"}})"}) {
    EXPECT_TRUE(precision(std::string(text)).starts_with("could be better: not measured: "))
        << text;
  }
}

}  // namespace
}  // namespace bottomless::cli
