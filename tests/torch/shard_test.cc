// bottomless::Shard over real ranks, started as torchrun and mpirun do.
#include <bottomless/optim.h>
#include <bottomless/shard.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include "torch/started_ranks.h"

namespace bottomless {
namespace {

constexpr int kSteps = 4;  // as in shard_ranks.cc

struct Outcome {
  int code = -1;
  std::string out;
  std::vector<double> losses, norms;
  int evictions = -1;
  long gathered = -1;
  size_t allocated = 0, freed = 0;
};

std::FILE* start(const std::string& environment, const std::string& arguments) {
  const std::string fixed = "MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo ";
  return popen(
      (fixed + environment + " timeout 300 " SHARD_RANKS " " + arguments + " 2>&1").c_str(), "r");
}

Outcome outcome_of(int status, std::string out) {
  Outcome outcome{.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1, .out = std::move(out)};
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    double loss = 0, norm = 0;
    if (std::sscanf(line.c_str(), "%lf %lf", &loss, &norm) == 2) {
      outcome.losses.push_back(loss);
      outcome.norms.push_back(norm);
    }
    std::sscanf(line.c_str(), "evictions %d", &outcome.evictions);
    std::sscanf(line.c_str(), "gathered %ld", &outcome.gathered);
    std::sscanf(line.c_str(), "allocated %zu freed %zu", &outcome.allocated, &outcome.freed);
  }
  return outcome;
}

Outcome finish(std::FILE* pipe) {
  std::string out;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) out.append(buffer, got);
  const int status = pclose(pipe);
  return outcome_of(status, std::move(out));
}

struct Started {
  std::string name;
  std::string rank, ranks, others;
  int stage;
  std::string optimizer = "AdamW";
};

void PrintTo(const Started& started, std::ostream* out) { *out << started.name; }

std::vector<Outcome> run_two(const Started& started, const std::string& more = "") {
  const TemporaryDirectory disks[2];
  const std::string port = std::to_string(free_port());
  std::FILE* pipes[2];
  for (int rank = 0; rank < 2; ++rank) {
    pipes[rank] = start(started.rank + "=" + std::to_string(rank) + " " + started.ranks + "=2 " +
                            started.others + " MASTER_PORT=" + port,
                        std::to_string(started.stage) + " " + started.optimizer + " " +
                            std::to_string(28 << 20) + " " + disks[rank].path().string() + more);
  }
  std::vector<Outcome> outcomes;
  for (std::FILE* pipe : pipes) outcomes.push_back(finish(pipe));
  return outcomes;
}

void check_training(const std::vector<Outcome>& ranks, const std::string& optimizer) {
  const Outcome alone = finish(start("", "0 " + optimizer + " 0 ."));
  ASSERT_EQ(alone.losses.size(), kSteps) << alone.out;
  for (const Outcome& rank : ranks) {
    ASSERT_EQ(rank.code, 0) << rank.out;
    ASSERT_EQ(rank.losses.size(), kSteps) << rank.out;
    EXPECT_EQ(rank.norms, ranks[0].norms);
    EXPECT_EQ(rank.out.find("wrong"), std::string::npos) << rank.out;
    EXPECT_GT(rank.evictions, 0);
    EXPECT_GT(rank.allocated, 0u);
    EXPECT_EQ(rank.allocated, rank.freed);
  }
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = (ranks[0].losses[step] + ranks[1].losses[step]) / 2;
    EXPECT_NEAR(loss, alone.losses[step], 1e-5 * alone.losses[step]) << step;
    EXPECT_NEAR(ranks[0].norms[step], alone.norms[step], 1e-4 * alone.norms[step]) << step;
  }
  EXPECT_LT(alone.losses.back(), alone.losses.front());
}

class ShardedTraining : public testing::TestWithParam<Started> {};

TEST_P(ShardedTraining, IsThatOfOneProcess) {
  check_training(run_two(GetParam()), GetParam().optimizer);
}

INSTANTIATE_TEST_SUITE_P(
    , ShardedTraining,
    testing::Values(Started{"TorchrunStage1", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 1},
                    Started{"TorchrunStage2", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 2},
                    Started{"TorchrunStage3", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 3},
                    Started{"WholeParameters", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 3,
                            "Adafactor"},
                    Started{"OpenMpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_SIZE=2", 3},
                    Started{"Mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS=2", 2}),
    [](const auto& info) { return info.param.name; });

// One command line for both ranks, so the directory has a placeholder in it.
TEST(Shard, IsStartedByMpirun) {
  if (std::system("command -v mpirun >/dev/null") != 0)
    GTEST_SKIP() << "no mpirun on PATH (Debian: openmpi-bin)";
  const TemporaryDirectory files, disks;
  for (const char* rank : {"0", "1"}) std::filesystem::create_directory(disks.path() / rank);
  const std::string rank = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}";
  const std::string training = SHARD_RANKS " 3 AdamW " + std::to_string(28 << 20) + " " +
                               disks.path().string() + "/{rank} >" + files.path().string() + "/" +
                               rank + " 2>&1";
  const std::string environment =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "OMPI_MCA_rmaps_base_oversubscribe=1 "
      "MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo MASTER_PORT=";
  const int status = std::system((environment + std::to_string(free_port()) +
                                  " timeout 300 mpirun -n 2 sh -c '" + training + "'")
                                     .c_str());
  std::vector<Outcome> ranks;
  for (const char* name : {"0", "1"}) {
    std::ifstream file(files.path() / name);
    ranks.push_back(outcome_of(status, {std::istreambuf_iterator<char>(file), {}}));
  }
  check_training(ranks, "AdamW");
}

// What was gathered in forward comes from the node's own shares in backward.
TEST(Shard, OfNodesGathersLessFromOthersAndComputesTheSame) {
  const Started started{"", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 3};
  const std::vector<Outcome> plain = run_two(started), nodes = run_two(started, " nodes");
  check_training(nodes, started.optimizer);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(nodes[rank].losses, plain[rank].losses);
    EXPECT_EQ(nodes[rank].norms, plain[rank].norms);
    EXPECT_GT(nodes[rank].gathered, 0);
    EXPECT_LT(nodes[rank].gathered, 0.9 * static_cast<double>(plain[rank].gathered));
  }
}

TEST(Shard, EndsTheOthersWhenARankFails) {
  const std::vector<Outcome> ranks =
      run_two({"", "RANK", "WORLD_SIZE", "MASTER_ADDR=127.0.0.1", 3}, " fail");
  EXPECT_EQ(ranks[1].code, 1) << ranks[1].out;
  EXPECT_EQ(ranks[0].code, 1) << ranks[0].out;
  EXPECT_NE(ranks[0].out.find("rank 1"), std::string::npos) << ranks[0].out;
}

class JoinRanks : public testing::Test {
 protected:
  ~JoinRanks() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }

 private:
  std::vector<std::string> set_;
};

template <class Work>
std::string refusal_of(Work work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_F(JoinRanks, SaysWhatTheEnvironmentLacks) {
  EXPECT_NE(refusal_of([] { join_ranks(); }).find("torchrun or mpirun"), std::string::npos);
  set("OMPI_COMM_WORLD_RANK", "1");
  set("OMPI_COMM_WORLD_SIZE", "4");
  set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  EXPECT_NE(refusal_of([] { join_ranks(); }).find("MASTER_ADDR"), std::string::npos);
  set("OMPI_COMM_WORLD_RANK", "4");
  EXPECT_NE(refusal_of([] { join_ranks(); }).find("ranks count from 0"), std::string::npos);
  set("OMPI_COMM_WORLD_RANK", "four");
  EXPECT_NE(refusal_of([] { join_ranks(); }).find("OMPI_COMM_WORLD_RANK='four'"),
            std::string::npos);
}

TEST_F(JoinRanks, NamesTheRanksThatDoNotCome) {
  set("RANK", "0");
  set("WORLD_SIZE", "3");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(free_port()));
  const std::string message = refusal_of([] { join_ranks(std::chrono::seconds(1)); });
  EXPECT_NE(message.find("missing: 1 2"), std::string::npos) << message;
}

TEST(Shard, RefusesWhatWouldDifferFromRankToRank) {
  torch::nn::Linear model(4, 4);
  const auto refusal = [&](torch::optim::Optimizer& optimizer) {
    return refusal_of([&] { const Shard shard(*model, optimizer, nullptr); });
  };
  optim::AdamOptions clipping = optim::AdamWOptions();
  clipping.max_norm(1);
  optim::AdamW clips(model->parameters(), clipping);
  EXPECT_NE(refusal(clips).find("Shard::clip_grad_norm_"), std::string::npos);
  optim::SGD skips(model->parameters(), optim::SGDOptions(0.1).skip_nonfinite(true));
  EXPECT_NE(refusal(skips).find("skip_nonfinite"), std::string::npos);
  torch::optim::LBFGS whole(model->parameters());
  EXPECT_NE(refusal(whole).find("LBFGS"), std::string::npos);
  torch::optim::SGD used(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model->forward(torch::ones({1, 4})).sum().backward();
  used.step();
  EXPECT_NE(refusal(used).find("before the first one"), std::string::npos);
  torch::optim::SGD fresh(model->parameters(), 0.1);
  EXPECT_NE(refusal(fresh).find("join_ranks"), std::string::npos);
}

}  // namespace
}  // namespace bottomless
