#include "cli/fio.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "support/temporary_directory.h"

namespace bottomless::cli {
namespace {

constexpr const char* kPrinted = R"(note: a warning
{ "jobs": [ { "job_runtime": 2000, "usr_cpu": 2.5, "sys_cpu": 10.0,
    "read": { "io_bytes": 3000000000, "runtime": 1990 },
    "write": { "io_bytes": 1000000000, "runtime": 2000 } } ] })";

TEST(RateFromFio, AddsBothDirectionsAndKnowsThePercentages) {
  const Result<Rate> rate = rate_from_fio(kPrinted);
  ASSERT_TRUE(rate.ok()) << rate.error().message;
  EXPECT_EQ(rate.value().bytes, 4000000000u);
  EXPECT_DOUBLE_EQ(rate.value().seconds, 2.0);
  EXPECT_DOUBLE_EQ(rate.value().cpu_seconds, 0.25);
}

TEST(RateFromFio, RefusesWhatItDoesNotKnow) {
  for (const char* text :
       {"", "fio: broken", "{", "{}", "[1]", R"({"jobs": []})", R"({"jobs": [{"read": 5}]})"}) {
    EXPECT_FALSE(rate_from_fio(text).ok()) << text;
  }
}

TEST(RateFromFio, RefusesARunThatMovedNothing) {
  EXPECT_FALSE(rate_from_fio(R"({"jobs": [{"job_runtime": 1, "usr_cpu": 0, "sys_cpu": 0,
      "read": {"io_bytes": 0, "runtime": 0}, "write": {"io_bytes": 0, "runtime": 0}}]})")
                   .ok());
}

// Programs that stand in for fio.
class FakeFio : public testing::Test {
 protected:
  FakeFio() : file_(std::move(WorkingFile::open(directory_.path(), 8_MiB)).value()) {
    EXPECT_TRUE(file_.fill(1e9).ok());
  }
  Result<Rate> run(const std::string& script, const Load& load) {
    const auto program = programs_.path() / "fio";
    std::ofstream(program) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return measure_with_fio({program, "fake"}, file_, load);
  }
  TemporaryDirectory directory_;
  TemporaryDirectory programs_;
  WorkingFile file_;
};

TEST_F(FakeFio, CanOpenTheNamelessFile) {
  // The number of bytes comes from the file that --filename names.
  const Result<Rate> rate = run(R"sh(
for option; do case "$option" in --filename=*) file=${option#--filename=};; esac; done
echo '{"jobs": [{"job_runtime": 1000, "usr_cpu": 0, "sys_cpu": 50, "write": {"io_bytes": 0, "runtime": 0},'
echo '"read": {"runtime": 1000, "io_bytes":' $(wc -c < "$file") '}}]}'
)sh",
                                {});
  ASSERT_TRUE(rate.ok()) << rate.error().message;
  EXPECT_EQ(rate.value().bytes, 8_MiB);
  EXPECT_DOUBLE_EQ(rate.value().cpu_seconds, 0.5);
}

TEST_F(FakeFio, IsGivenTheLoad) {
  const Load load{.pattern = Pattern::mixed, .size = 64_KiB, .depth = 3, .seconds = 0.25};
  const Result<Rate> rate = run("echo \"$*\"; exit 1\n", load);
  ASSERT_FALSE(rate.ok());
  for (const char* wanted : {"--rw=randrw", "--rwmixread=50", "--bs=65536", "--iodepth=3",
                             "--runtime=250ms", "--size=8388608", "--time_based"}) {
    EXPECT_NE(rate.error().message.find(wanted), std::string::npos) << wanted;
  }
}

TEST_F(FakeFio, ThatFailsIsQuoted) {
  const Result<Rate> rate = run("echo first; echo 'fio: engine not loadable' >&2; exit 1\n", {});
  ASSERT_FALSE(rate.ok());
  EXPECT_EQ(rate.error().message,
            "run fio: it failed with 'fio: engine not loadable'; leave it out with --no-fio");
}

TEST_F(FakeFio, ThatIsNotThereIsAnError) {
  EXPECT_FALSE(measure_with_fio({programs_.path() / "none", "fake"}, file_, {}).ok());
}

TEST(RealFio, MeasuresEveryPattern) {
  const auto fio = find_fio();
  if (!fio) GTEST_SKIP() << "fio is not installed";
  TemporaryDirectory directory;
  WorkingFile file = std::move(WorkingFile::open(directory.path(), 8_MiB)).value();
  ASSERT_TRUE(file.fill(1e9).ok());
  for (const Pattern pattern : {Pattern::read, Pattern::write, Pattern::mixed}) {
    const Result<Rate> rate = measure_with_fio(
        *fio, file, {.pattern = pattern, .size = 256_KiB, .depth = 2, .seconds = 0.1});
    ASSERT_TRUE(rate.ok()) << rate.error().message;
    EXPECT_GT(rate.value().bytes, 0u) << name_of(pattern);
  }
  EXPECT_EQ(directory.entries(), 0u);
}

}  // namespace
}  // namespace bottomless::cli
