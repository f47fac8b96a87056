#include "cli/bench_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace bottomless::cli {
namespace {

Rate rate(Bytes bytes, double cpu_seconds) { return {bytes, 1.0, cpu_seconds}; }

BenchReport example() {
  BenchReport report{.bytes = 1_GiB, .engine = "O_DIRECT, io_uring", .fio = "fio-3.33"};
  const Load load{.pattern = Pattern::mixed, .size = 4_MiB, .depth = 8};
  // The median of bandwidth and that of CPU time come from different rounds.
  report.rows.push_back({{"/a"},
                         load,
                         {rate(1_GiB, 0.2), rate(9_GiB, 0.9), rate(2_GiB, 1.0)},
                         {rate(4_GiB, 0.4), rate(4_GiB, 0.4), rate(1_GiB, 0.4)}});
  report.rows.push_back({{"/a", "/b"}, load, {rate(2_GiB, 1.0), rate(4_GiB, 1.0)}, {}});
  return report;
}

TEST(BenchReport, AsJsonHasMediansAndRatiosOfThem) {
  const nlohmann::json json = json_of(example());
  const nlohmann::json& alone = json["measurements"][0];
  EXPECT_EQ(json["file_bytes"], 1_GiB);
  EXPECT_EQ(json["fio"], "fio-3.33");
  EXPECT_EQ(alone["directories"], (std::vector<std::string>{"/a"}));
  EXPECT_EQ(alone["pattern"], "mixed");
  EXPECT_EQ(alone["size_bytes"], 4_MiB);
  EXPECT_EQ(alone["in_flight"], 8);
  EXPECT_DOUBLE_EQ(alone["ours"]["bytes_per_second"].get<double>(), 2.0 * 1_GiB);
  EXPECT_DOUBLE_EQ(alone["ours"]["cpu_seconds_per_gib"].get<double>(), 0.2);
  EXPECT_DOUBLE_EQ(alone["fio"]["bytes_per_second"].get<double>(), 4.0 * 1_GiB);
  EXPECT_DOUBLE_EQ(alone["bandwidth_ratio"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(alone["cpu_ratio"].get<double>(), 2.0);
  EXPECT_EQ(alone["ours"]["rounds"].size(), 3u);
  EXPECT_EQ(alone["ours"]["rounds"][1]["bytes"], 9_GiB);
}

TEST(BenchReport, AsJsonSaysNothingOfFioWhereItWasNotMeasured) {
  BenchReport report = example();
  report.fio.clear();
  const nlohmann::json json = json_of(report);
  EXPECT_TRUE(json["fio"].is_null());
  EXPECT_FALSE(json["measurements"][1].contains("fio"));
  EXPECT_FALSE(json["measurements"][1].contains("bandwidth_ratio"));
  EXPECT_DOUBLE_EQ(json["measurements"][1]["ours"]["bytes_per_second"].get<double>(), 3.0 * 1_GiB);
}

TEST(BenchReport, AsATableHasALineForEachLoadUnderItsDirectories) {
  EXPECT_EQ(
      table_of(example()),
      "/a: a file of 1 GiB, O_DIRECT, io_uring\n"
      "              size in flight       GB/s CPU s/GiB   fio GB/s CPU s/GiB   ours/fio       "
      "CPU\n"
      "  mixed      4 MiB         8      2.147     0.200      4.295     0.100       0.50      "
      "2.00\n"
      "\n"
      "/a and /b: together, a file of 1 GiB each, O_DIRECT, io_uring\n"
      "              size in flight       GB/s CPU s/GiB\n"
      "  mixed      4 MiB         8      3.221     0.375\n");
}

}  // namespace
}  // namespace bottomless::cli
