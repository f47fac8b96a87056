// `bottomless run ./program`: an unmodified libtorch executable, whose steps are found from what it repeats.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_directory.h"

namespace bottomless {
namespace {

struct Outcome {
  int code = -1;
  std::string out;
};

Outcome run(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    outcome.out.append(buffer, got);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

class UnmarkedLoop : public testing::TestWithParam<int> {};

// One math mode for both runs: MKL may otherwise choose its code by the alignment of an address.
TEST_P(UnmarkedLoop, HasTheSameBitsAndItsStepsAreFound) {
  const std::string program = std::string(UNMARKED_LOOP) + " 28 " + std::to_string(GetParam());
  const Outcome plain = run("MKL_CBWR=COMPATIBLE " + program);
  ASSERT_EQ(plain.code, 0);
  const TemporaryDirectory disk;
  Outcome limited =
      run("MKL_CBWR=COMPATIBLE " BOTTOMLESS_PROGRAM " run --memory 28MiB --json --disk " +
          disk.path().string() + " " + program);
  ASSERT_EQ(limited.code, 0);
  const size_t last = limited.out.rfind('\n', limited.out.size() - 2) + 1;
  const auto stats = nlohmann::json::parse(limited.out.substr(last));
  EXPECT_EQ(limited.out.substr(0, last), plain.out);
  EXPECT_GT(stats["evictions"].get<int>(), 0) << stats;
  // 32 MiB of weights, gradients and moments, in 28 MiB: what is fetched was planned, once steps are known.
  EXPECT_GT(2 * stats["planned_fetches"].get<int>(), stats["demand_fetches"].get<int>()) << stats;
}

INSTANTIATE_TEST_SUITE_P(, UnmarkedLoop, testing::Values(0, 4, 3), [](const auto& info) {
  return "EvaluationEvery" + std::to_string(info.param);
});

// Threads of its own, files that libtorch writes and reads, two optimizers: in the least limit, also leaving at once.
TEST(AdversarialLoop, HasTheSameBits) {
  const TemporaryDirectory files;
  const std::string program = std::string(ADVERSARIAL_LOOP) + " " + files.path().string();
  const Outcome plain = run("MKL_CBWR=COMPATIBLE " + program);
  ASSERT_EQ(plain.code, 0);
  for (const char* eagerly : {"0", "1"}) {
    const TemporaryDirectory disk;
    const Outcome limited =
        run("MKL_CBWR=COMPATIBLE BOTTOMLESS_EVICT_EAGERLY=" + std::string(eagerly) +
            " " BOTTOMLESS_PROGRAM " run --memory 8MiB --json --disk " + disk.path().string() +
            " " + program);
    ASSERT_EQ(limited.code, 0);
    const size_t last = limited.out.rfind('\n', limited.out.size() - 2) + 1;
    const auto stats = nlohmann::json::parse(limited.out.substr(last));
    EXPECT_EQ(limited.out.substr(0, last), plain.out);
    EXPECT_GT(stats["evictions"].get<int>(), 0) << stats;
    EXPECT_GT(stats["written_bytes"].get<int64_t>(), 0) << stats;
  }
}

}  // namespace
}  // namespace bottomless
