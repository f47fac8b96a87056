#include "os/started_rank.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace bottomless {
namespace {

class InAnEnvironment : public testing::Test {
 protected:
  InAnEnvironment() {
    for (const char* name : kNames) unsetenv(name);
  }
  ~InAnEnvironment() override {
    for (const char* name : kNames) unsetenv(name);
  }
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MPI_LOCALRANKID",
                                           "MPI_LOCALNRANKS",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "A_NUMBER",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE"};

  static void set(const char* name, const char* value) { setenv(name, value, 1); }
};

using StartedRankOf = InAnEnvironment;
using WithRank = InAnEnvironment;

TEST_F(StartedRankOf, AProgramByItselfIsNothing) {
  EXPECT_FALSE(started_rank().value().has_value());
  set("RANK", "1");  // of how many?
  EXPECT_FALSE(started_rank().value().has_value());
  EXPECT_EQ(ranks_of_this_machine(), 1);
}

TEST_F(StartedRankOf, EveryStarterIsFound) {
  for (const auto& [rank, ranks, local_rank, local_ranks] :
       {std::tuple("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
         "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}}) {
    set(rank, "5");
    set(ranks, "8");
    EXPECT_FALSE(started_rank().value()->local_rank.has_value());
    set(local_rank, "1");
    set(local_ranks, "4");
    const StartedRank found = *started_rank().value();
    EXPECT_EQ(found.rank, 5);
    EXPECT_EQ(found.ranks, 8);
    EXPECT_EQ(found.local_rank, 1);
    EXPECT_EQ(found.local_ranks, 4);
    EXPECT_EQ(ranks_of_this_machine(), 4);
    for (const char* name : {rank, ranks, local_rank, local_ranks}) unsetenv(name);
  }
}

TEST_F(StartedRankOf, NonsenseIsAnError) {
  set("RANK", "2");
  set("WORLD_SIZE", "2");
  EXPECT_NE(started_rank().error().message.find("RANK=2 of WORLD_SIZE=2"), std::string::npos);
  for (const char* nonsense : {"two", "-1", "1x", "99999999999"}) {
    set("RANK", nonsense);
    EXPECT_NE(started_rank().error().message.find(std::string("RANK='") + nonsense + "'"),
              std::string::npos);
  }
}

TEST_F(StartedRankOf, NumbersMayBeMissing) {
  EXPECT_EQ(number_in_environment("A_NUMBER").value(), std::nullopt);
  set("A_NUMBER", "");
  EXPECT_EQ(number_in_environment("A_NUMBER").value(), std::nullopt);
  set("A_NUMBER", "29500");
  EXPECT_EQ(number_in_environment("A_NUMBER").value(), 29500);
}

TEST_F(WithRank, PutsNumbersInPlace) {
  set("RANK", "11");
  set("WORLD_SIZE", "16");
  set("LOCAL_RANK", "3");
  EXPECT_EQ(with_rank("/nvme{local_rank}/{rank}-{rank}").value(), "/nvme3/11-11");
  EXPECT_EQ(with_rank("/plain/{other}").value(), "/plain/{other}");
}

TEST_F(WithRank, SaysWhatTheEnvironmentLacks) {
  EXPECT_EQ(with_rank("/scratch").value(), "/scratch");
  const Result<std::string> alone = with_rank("/scratch/{rank}");
  EXPECT_EQ(alone.error().code, Code::invalid_argument);
  EXPECT_EQ(alone.error().message,
            "put a number in place of {rank} in '/scratch/{rank}': the environment does not say "
            "which rank this is; start the program by torchrun or mpirun, or leave {rank} out");
  set("RANK", "0");
  set("WORLD_SIZE", "2");
  EXPECT_EQ(with_rank("/scratch/{rank}").value(), "/scratch/0");
  EXPECT_NE(with_rank("/{local_rank}").error().message.find("this machine's"), std::string::npos);
}

}  // namespace
}  // namespace bottomless
