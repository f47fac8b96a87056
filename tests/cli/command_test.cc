// The program as a user starts it.
#include <bottomless/bytes.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/check.h"
#include "support/temporary_directory.h"

namespace bottomless {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

std::string content(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// `words` as a shell would take them.
Outcome run(const std::string& words, const std::string& environment = "") {
  const TemporaryDirectory streams;
  const auto out = streams.path() / "out";
  const auto err = streams.path() / "err";
  const std::string command = environment + " '" BOTTOMLESS_PROGRAM "' " + words + " >" +
                              out.string() + " 2>" + err.string();
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
}

bool is_one_sentence(const std::string& text) {
  return text.starts_with("bottomless: ") && std::count(text.begin(), text.end(), '\n') == 1 &&
         text.back() == '\n';
}

constexpr const char* kQuick = "bench disk --bytes 16MiB --seconds 0.05 --rounds 1 ";

class BenchDisk : public testing::Test {
 protected:
  // A directory for PATH whose fio is this script.
  std::string path_with_fio(const std::string& script) {
    const auto program = programs_.path() / "fio";
    std::ofstream(program) << "#!/bin/sh\n[ \"$1\" = --version ] && echo fio-9 && exit\n" << script;
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    return "PATH=" + programs_.path().string() + ":/usr/bin:/bin";
  }
  std::string directory() const { return directory_.path().string(); }

  TemporaryDirectory directory_;
  TemporaryDirectory programs_;
};

TEST_F(BenchDisk, MeasuresEveryCombination) {
  const Outcome outcome =
      run(kQuick + ("--no-fio --json --size 64KiB,1MiB --depth 1,4 " + directory()));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["file_bytes"], 16_MiB);
  EXPECT_TRUE(report["fio"].is_null());
  std::set<std::tuple<std::string, Bytes, int>> found;
  for (const auto& row : report["measurements"]) {
    found.emplace(row["pattern"], row["size_bytes"], row["in_flight"]);
    EXPECT_EQ(row["directories"], std::vector<std::string>{directory()});
    EXPECT_GT(row["ours"]["bytes_per_second"], 0);
    EXPECT_EQ(row["ours"]["rounds"].size(), 1u);
    EXPECT_GT(row["ours"]["rounds"][0]["bytes"], 0);
  }
  std::set<std::tuple<std::string, Bytes, int>> wanted;
  for (const char* pattern : {"read", "write", "mixed"}) {
    for (const Bytes size : {64_KiB, 1_MiB}) {
      for (const int depth : {1, 4}) wanted.emplace(pattern, size, depth);
    }
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(report["measurements"].size(), wanted.size());
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST_F(BenchDisk, MeasuresSeveralDirectoriesAloneAndTogether) {
  const TemporaryDirectory other;
  const Outcome outcome = run(kQuick + ("--no-fio --json --size 1MiB --depth 2 " + directory() +
                                        " " + other.path().string()));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  std::vector<size_t> directories;
  for (const auto& row : report["measurements"]) directories.push_back(row["directories"].size());
  EXPECT_EQ(directories, (std::vector<size_t>{1, 1, 1, 1, 1, 1, 2, 2, 2}));
}

TEST_F(BenchDisk, SaysInOneLineThatThereIsNoFio) {
  const Outcome outcome =
      run(kQuick + ("--size 1MiB --depth 1 " + directory()), "PATH=" + programs_.path().string());
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("\nfio is not on PATH"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("ours/fio"), std::string::npos) << outcome.out;
}

TEST_F(BenchDisk, ComparesWithFioInTurns) {
  const std::string path = path_with_fio(R"sh(
echo '{"jobs": [{"job_runtime": 1000, "usr_cpu": 1, "sys_cpu": 1, "write": {"io_bytes": 0, "runtime": 0},'
echo '"read": {"io_bytes": 1000, "runtime": 1000}}]}'
)sh");
  const Outcome outcome =
      run("bench disk --bytes 16MiB --seconds 0.05 --rounds 2 --json --size 1MiB --depth 1 " +
              directory(),
          path);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["fio"], "fio-9");
  for (const auto& row : report["measurements"]) {
    EXPECT_EQ(row["fio"]["bytes_per_second"], 1000);
    EXPECT_EQ(row["fio"]["rounds"].size(), 2u);
    EXPECT_GT(row["bandwidth_ratio"], 1);
  }
}

TEST_F(BenchDisk, ThatCannotRunFioSaysSo) {
  const std::string path = path_with_fio("echo 'fio: no such engine' >&2; exit 1\n");
  const Outcome outcome = run(kQuick + ("--size 1MiB --depth 1 " + directory()), path);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("fio: no such engine"), std::string::npos) << outcome.err;
}

TEST_F(BenchDisk, OfAMissingDirectoryIsOneSentence) {
  const Outcome outcome = run(kQuick + (directory() + "/none"));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(is_one_sentence(outcome.err)) << outcome.err;
  EXPECT_NE(outcome.err.find(directory() + "/none"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.out, "");
}

TEST_F(BenchDisk, WithoutEnoughSpaceIsOneSentence) {
  const Outcome outcome = run("bench disk --bytes 1000TiB " + directory());
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(is_one_sentence(outcome.err)) << outcome.err;
  EXPECT_NE(outcome.err.find("free there"), std::string::npos) << outcome.err;
}

TEST_F(BenchDisk, RefusesWhatMakesNoSense) {
  for (const char* words :
       {"", "--size 1000", "--size 0", "--size many", "--size 32MiB", "--depth 0", "--seconds 0",
        "--seconds nan", "--rounds 0", "--unknown"}) {
    const std::string where = *words == '\0' ? "" : " " + directory();
    const Outcome outcome = run(kQuick + (words + where));
    EXPECT_EQ(outcome.code, 2) << words << outcome.err;
    EXPECT_NE(outcome.err, "") << words;
  }
}

// Whatever ends it, nothing is left: no file, and no fio that goes on working.
TEST_F(BenchDisk, KilledLeavesNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // Says that it runs, and then holds the pipe open until it ends.
  const std::string path =
      path_with_fio("echo running >&" + std::to_string(ends[1]) + "\nexec sleep 1000\n");
  const std::string program = BOTTOMLESS_PROGRAM;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("PATH", path.substr(std::string("PATH=").size()).c_str(), 1);
    close(ends[0]);
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execl(program.c_str(), program.c_str(), "bench", "disk", "--bytes", "16MiB", "--seconds",
          "0.01", "--size", "1MiB", "--depth", "1", directory().c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  char text[64];
  ASSERT_GT(read(ends[0], text, sizeof text), 0) << "fio was not started";
  EXPECT_EQ(directory_.entries(), 0u);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read(ends[0], text, sizeof text), 0);  // returns once fio has ended
  close(ends[0]);
  EXPECT_EQ(directory_.entries(), 0u);
}

TEST(Doctor, TellsOfTheMachineAndTheDirectory) {
  const TemporaryDirectory directory;
  const Outcome outcome = run("doctor --json --disk " + directory.path().string());
  const auto report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(outcome.code, report["complete"].get<bool>() ? 0 : 1);
  std::map<std::string, nlohmann::json> findings;
  for (const auto& finding : report["findings"]) findings[finding["topic"]] = finding;
  for (const char* topic :
       {"kernel", "processor", "cores", "GPU", "memory", "swap", "huge pages",
        "vm.overcommit_memory", "vm.max_map_count", "moving frames", "io_uring", "torch"}) {
    EXPECT_TRUE(findings.contains(topic)) << topic;
  }
  const std::string disk = "disk " + directory.path().string();
  for (const char* about : {"", " file system", " O_DIRECT", " speed"})
    EXPECT_TRUE(findings.contains(disk + about)) << about;
  EXPECT_EQ(directory.entries(), 0u);
}

TEST(Doctor, OfAMissingDirectoryIsIncomplete) {
  const Outcome outcome = run("doctor --disk /none");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("NO  disk /none"), std::string::npos) << outcome.out;
}

// A Python that is asked for its torch first, and then to measure.
std::string path_with_python(const TemporaryDirectory& programs, const std::string& torch,
                             const std::string& precision) {
  const auto python = programs.path() / "python3";
  std::ofstream(python) << "#!/bin/sh\ncase $1 in\n-c) " << torch << ";;\n-m) " << precision
                        << ";;\nesac\n";
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  return "PATH=" + programs.path().string() + ":/usr/bin:/bin";
}

std::string said_of_precision(const std::string& environment) {
  const TemporaryDirectory directory;
  const Outcome outcome = run("doctor --json --disk " + directory.path().string(), environment);
  const auto report = nlohmann::json::parse(outcome.out);
  for (const auto& finding : report["findings"]) {
    if (finding["topic"] == "compute precision")
      return finding["verdict"].get<std::string>() + ": " + finding["value"].get<std::string>();
  }
  return "no finding";
}

TEST(Doctor, SaysWhatPythonMeasuredOfPrecision) {
  const TemporaryDirectory programs;
  const std::string measured =
      R"([ "$2" = bottomless.precision ] && echo '{"chosen": "bfloat16", "set_by": "measurement", )"
      R"("speed": {"bfloat16": [1.9, 2.1], "float16": [0.4, 0.4]}, "quiet": true}')";
  EXPECT_EQ(said_of_precision(path_with_python(programs, "echo 2.13.0", measured)),
            "good: bfloat16 1.9 to 2.1 x float32, float16 0.4 x: bfloat16 is chosen");
  EXPECT_EQ(said_of_precision(path_with_python(
                programs, "echo 2.13.0", "echo \"$0: No module named bottomless\" >&2; exit 1")),
            "could be better: not measured: the package bottomless is not in " +
                (programs.path() / "python3").string());
}

TEST(Doctor, WithoutTorchSaysSoOnce) {
  const TemporaryDirectory programs;
  EXPECT_EQ(said_of_precision(path_with_python(programs, "exit 1", "exit 1")), "no finding");
}

TEST(Command, NamesAVerbOrAnOptionThatThereIsNot) {
  for (const auto& [words, said] : std::vector<std::pair<std::string, std::string>>{
           {"trian --model x", "there is no verb 'trian'; did you mean 'train'?"},
           {"foo", "there is no verb 'foo'"},
           {"bench dsk", "there is no verb 'dsk'; did you mean 'disk'?"},
           {"doctor --jsn", "there is no option '--jsn'; did you mean '--json'?"},
           {"run --memroy 4GiB --disk /tmp x.py",
            "there is no option '--memroy'; did you mean '--memory'?"},
           {"run --memory 4GiB x.py", "--disk is required"},
           {"bench disk --what=3", "there is no option '--what'"},
           {"doctor more", "more"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_EQ(outcome.err.find("bottomless: "), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find(said), std::string::npos) << words << ": " << outcome.err;
  }
}

TEST(Command, WithoutAVerbIsAnErrorOfUsage) {
  EXPECT_EQ(run("").code, 2);
  EXPECT_EQ(run("bench").code, 2);
  EXPECT_EQ(run("--version").code, 0);
}

}  // namespace
}  // namespace bottomless
