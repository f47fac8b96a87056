// What is said about a training run: before it, while it goes, and afterwards.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "report/estimate_table.h"
#include "report/event_record.h"
#include "report/metrics.h"
#include "report/page_parts.h"
#include "report/run_page.h"
#include "report/training_status.h"
#include "support/random.h"

namespace bottomless {
namespace {

StepMetrics metrics_of(uint64_t step) {
  const auto at = static_cast<double>(step);
  StepMetrics metrics{.step = step,
                      .time = 1.7e9 + at,
                      .seconds = 1.25,
                      .tokens = step * 1024,
                      .epochs = at / 700,
                      .loss = 2 + 8 * std::exp(-at / 150) + 0.2 * std::sin(at),
                      .learning_rate = 1e-4 * std::min(1.0, at / 50),
                      .tokens_per_second = 800 + 30 * std::cos(at / 9),
                      .hardware_share = 0.71,
                      .memory = 1_GiB + step % 50 * 10_MiB,
                      .memory_limit = 2_GiB,
                      .disk = 12_GiB,
                      .disk_limit = 200_GiB,
                      .read = step * 3_GiB,
                      .written = step * 2_GiB};
  if (step % 100 == 0) metrics.evaluation_loss = metrics.loss + 0.3;
  if (step % 100 == 0) metrics.received = 1e9 * at;
  return metrics;
}

TEST(Metrics, AreALineOfJsonThatCanBeReadAgain) {
  for (const uint64_t step : {1u, 100u}) {
    const StepMetrics before = metrics_of(step);
    const Result<StepMetrics> after = parse_metrics(line_of(before));
    ASSERT_TRUE(after.ok()) << after.error().message;
    EXPECT_EQ(after.value(), before);
    EXPECT_EQ(line_of(before).find('\n'), std::string::npos);
  }
  EXPECT_TRUE(line_of(metrics_of(1)).starts_with(R"({"step":1,"time":1700000001.0,)"));
}

TEST(Metrics, KeepALossThatIsNotANumber) {
  StepMetrics metrics = metrics_of(3);
  metrics.loss = std::nan("");
  EXPECT_NE(line_of(metrics).find(R"("loss":null)"), std::string::npos);
  EXPECT_TRUE(std::isnan(parse_metrics(line_of(metrics)).value().loss));
}

TEST(Metrics, OfAnythingElseAreAnErrorAndAreLeftOut) {
  for (const char* text : {"", "{}", "[1]", "{\"step\": \"x\"}", "null"}) {
    EXPECT_FALSE(parse_metrics(text).ok()) << text;
  }
  const std::string line = line_of(metrics_of(1));
  EXPECT_EQ(parse_metrics_lines(line + "\n\nrubbish\n" + line + "\n" + line.substr(0, 30)).size(),
            2u);
}

// Known answers, from the definition of the checksum (RFC 3720, appendix B.4).
TEST(EventRecord, HasTheChecksumsOfTheFormat) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(EventRecord, IsFramedByItsLength) {
  const std::vector<Scalar> scalars{{"a", 1.5f}, {"longer name", -2}};
  const std::string record = scalar_record(1.5, 300, scalars);
  uint64_t length = 0;
  std::memcpy(&length, record.data(), sizeof length);
  EXPECT_EQ(record.size(), 8 + 4 + length + 4);
  EXPECT_NE(record.find("longer name"), std::string::npos);
}

TrainingStatus status_of(uint64_t step) {
  return {.last = metrics_of(step), .steps = 1000, .steps_here = step - 50, .elapsed_seconds = 300};
}

TEST(TrainingStatus, IsABarWithWhatFits) {
  EXPECT_EQ(bar_of(status_of(200), 500),
            "[####................] 20 %, 26 min 40 s left, loss 3.9341, 771 tokens/s, "
            "71 % of the hardware, memory [##...] 1 GiB, disk [.....] 12 GiB, step 200 of 1000");
  EXPECT_EQ(bar_of(status_of(200), 60),
            "[####................] 20 %, 26 min 40 s left, loss 3.9341");
  for (size_t columns = 0; columns < 200; ++columns) {
    EXPECT_LE(bar_of(status_of(200), columns).size(), columns);
  }
}

TEST(TrainingStatus, IsALineWithEverything) {
  EXPECT_EQ(line_of(status_of(200)),
            "step 200 of 1000, loss 3.9341, evaluation loss 4.2341, 771 tokens/s, 71 % of the "
            "hardware, memory 1 GiB of 2 GiB, disk 12 GiB of 200 GiB, 26 min 40 s left");
}

TEST(TrainingStatus, SaysAtMostAllOfTheHardware) {
  TrainingStatus status = status_of(200);
  status.last.hardware_share = 1.92;
  EXPECT_NE(line_of(status).find(" 100 % of the hardware"), std::string::npos);
  EXPECT_NE(bar_of(status, 500).find(" 100 % of the hardware"), std::string::npos);
}

TEST(TrainingStatus, DoesNotGuessWhatItCannotKnow) {
  TrainingStatus status{.steps = 10};
  EXPECT_EQ(line_of(status), "step 0 of 10, loss 0.0000, 0.0 tokens/s, memory 0 B, disk 0 B");
  status.last.step = status.steps_here = 10;
  EXPECT_EQ(line_of(status).find("left"), std::string::npos);
}

TEST(RunPage, IsOneFileWithAllItsParts) {
  std::vector<StepMetrics> steps;
  for (uint64_t step = 1; step <= 1000; ++step) steps.push_back(metrics_of(step));
  steps[500].loss = std::nan("");
  const std::string page = page_of("GPT <350M>", steps);
  for (const char* part : {"<!doctype html>", "GPT &lt;350M&gt;", "<h2>Loss</h2>", "evaluation",
                           "<h2>Speed</h2>", "what the hardware allows", "<h2>Memory</h2>",
                           "<h2>Disk</h2>", "its perplexity", "written to the disk", "</html>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("http"), std::string::npos) << "nothing is loaded from anywhere";
  EXPECT_EQ(page.find("nan"), std::string::npos);
  EXPECT_EQ(page.find("inf"), std::string::npos);
  EXPECT_LT(page.size(), 200'000u);
  if (const char* wanted = std::getenv("BOTTOMLESS_PAGE")) std::ofstream(wanted) << page;
}

// A label that begins left of the chart is cut: "5.47 MiB/s" is read for 555.47.
TEST(Chart, HasRoomForTheLongestLabel) {
  constexpr double kWidthOfADigit = 7;  // at the 12 pixels of .label
  for (const std::string label : {"1023.99 MiB/s", "100.00 tok/s", "0"}) {
    const std::string chart = chart_begin({.top = label, .bottom = label});
    double end = 0;
    ASSERT_EQ(std::sscanf(chart.c_str() + chart.find("<text"), "<text x='%lf'", &end), 1) << chart;
    EXPECT_GE(end, kWidthOfADigit * static_cast<double>(label.size())) << label;
  }
}

TEST(RunPage, OfHardlyAnythingIsAPage) {
  EXPECT_NE(page_of("x", {}).find("No step was done"), std::string::npos);
  const std::vector<StepMetrics> one{StepMetrics{.step = 1}};
  EXPECT_EQ(page_of("x", one).find("nan"), std::string::npos);
  std::vector<StepMetrics> diverged{StepMetrics{.step = 1, .loss = std::nan("")}};
  EXPECT_NE(page_of("x", diverged).find("never a number"), std::string::npos);
}

// A 3B model in 2 GiB.
const RunShape kShape{.parameters = 3'000'000'000,
                      .trained = 3'000'000'000,
                      .largest_layer = 130'000'000,
                      .layers = 32,
                      .hidden = 2560,
                      .vocabulary = 50'257,
                      .rows = 1,
                      .length = 512};
const RunMachine kMachine{.memory_limit = 2_GiB,
                          .disk_free = 300_GiB,
                          .read_rate = 2e9,
                          .write_rate = 1e9,
                          .both_rate = 1.5e9,
                          .flops = 1e11};

TEST(EstimateTable, SaysWhatARunNeedsAndTakes) {
  const RunEstimate found = estimate(kShape, kMachine);
  const std::string table = table_of(found, kShape, kMachine);
  for (const char* part : {"in memory", "on the disk", "parameters", "gradients", "states",
                           "activations", "working set", "available", "2 GiB", "300 GiB", "at best",
                           "an hour; endurance: a 600 TBW drive lasts", "Limited by computing"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
  size_t longest = 0, begin = 0;
  for (size_t end = table.find('\n'); end != std::string::npos; end = table.find('\n', begin)) {
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  EXPECT_LE(longest, 120u);
  EXPECT_TRUE(nlohmann::json::parse(json_of(found)).at("can_run").get<bool>());
}

TEST(EstimateTable, SaysARangeWhereTheProcessorWasBusy) {
  EXPECT_NE(table_of(estimate(kShape, kMachine), kShape, kMachine)
                .find("at best: computing 1 min 35 s, the disk"),
            std::string::npos);
  RunMachine machine = kMachine;
  machine.flops_least = 5e10;
  const std::string table = table_of(estimate(kShape, machine), kShape, machine);
  EXPECT_NE(table.find("at best: computing 1 min 35 s to 3 min 9 s, the disk"), std::string::npos)
      << table;
}

TEST(EstimateTable, OfSeveralRanksHasTheNetwork) {
  EXPECT_EQ(table_of(estimate(kShape, kMachine), kShape, kMachine).find("network"),
            std::string::npos);
  RunShape shape = kShape;
  shape.ranks = 2;
  RunMachine machine = kMachine;
  std::string table = table_of(estimate(shape, machine), shape, machine);
  EXPECT_NE(table.find("received by each rank in a step\n"), std::string::npos) << table;
  machine.network_rate = 1_MiB;
  table = table_of(estimate(shape, machine), shape, machine);
  EXPECT_NE(table.find(" at 1 MiB a second\n"), std::string::npos) << table;
  EXPECT_NE(table.find("Limited by the network"), std::string::npos) << table;
}

TEST(EstimateTable, HasTheRoomThatCheckpointsNeed) {
  RunShape shape = kShape;
  shape.saved = shape.parameters;
  RunMachine machine = kMachine;
  machine.checkpoints_free = 200_GiB;
  const RunEstimate found = estimate(shape, machine);
  EXPECT_EQ(found.checkpoint, 36'000'000'000u);
  std::string table = table_of(found, shape, machine);
  EXPECT_NE(
      table.find("checkpoints  100.58 GiB for the last two and the next one; 200 GiB are free "
                 "there\n"),
      std::string::npos)
      << table;
  machine.checkpoints_share_disk = true;  // 44 GiB more
  table = table_of(found, shape, machine);
  EXPECT_EQ(table.find("too little"), std::string::npos) << table;
  machine.checkpoints_free = 120_GiB;
  table = table_of(found, shape, machine);
  EXPECT_NE(table.find("too little: make room, or have one at the end only (--save-minutes 0), "
                       "33.53 GiB\n"),
            std::string::npos)
      << table;
}

TEST(EstimateTable, SaysWhatToDoWhenItCannotWork) {
  RunMachine machine = kMachine;
  machine.memory_limit = 512_MiB;
  RunShape shape = kShape;
  EXPECT_EQ(verdict_of(estimate(shape, machine), shape, machine),
            "This cannot run: the working set of one layer needs a limit of 1.29 GiB, and the "
            "limit is 512 MiB; "
            "raise the memory limit, or take shorter rows.");
  machine.memory_limit = 2_GiB;
  shape.rows = 16;
  const std::string fewer = verdict_of(estimate(shape, machine), shape, machine);
  EXPECT_NE(fewer.find("take fewer rows at a time: one needs 1.29 GiB"), std::string::npos)
      << fewer;
  machine.disk_free = 10_GiB;
  const std::string full = verdict_of(estimate(kShape, machine), kShape, machine);
  EXPECT_NE(full.find("10 GiB are free; make room, name more disks"), std::string::npos) << full;
  EXPECT_EQ(table_of(estimate(kShape, machine), kShape, machine).find("at best"),
            std::string::npos);
}

}  // namespace
}  // namespace bottomless
