// What a run writes about itself: nothing of it is lost by a kill, and a run that goes on forgets what came after.
#include "journal/run_journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "journal/text_log.h"
#include "support/simulated_files.h"
#include "support/temporary_directory.h"

namespace bottomless::journal {
namespace {

StepMetrics step(uint64_t number, double loss) {
  return {.step = number,
          .time = 1.7e9 + static_cast<double>(number),
          .seconds = 1,
          .tokens = 512 * number,
          .loss = loss,
          .tokens_per_second = 512,
          .memory = 1_GiB,
          .memory_limit = 2_GiB};
}

std::vector<double> losses_in(Files& files) {
  std::vector<double> losses;
  const Result<std::string> text = read_text(files, "/metrics.jsonl");
  EXPECT_TRUE(text.ok());
  for (const StepMetrics& metrics : parse_metrics_lines(text.value())) {
    losses.push_back(metrics.loss);
  }
  return losses;
}

Result<void> run(Files& files, uint64_t from, uint64_t to, double loss) {
  Result<RunJournal> journal = RunJournal::begin(files, {"/", "a run", from, 1.7e9});
  if (!journal.ok()) return journal.error();
  for (uint64_t number = from + 1; number <= to; ++number) {
    const Result<void> recorded = journal.value().record(step(number, loss));
    if (!recorded.ok()) return recorded;
  }
  return journal.value().write_page();
}

TEST(RunJournal, GoesOnFromAStepAndForgetsLaterOnes) {
  SimulatedFiles files;
  ASSERT_TRUE(run(files, 0, 4, 9).ok());
  EXPECT_EQ(losses_in(files), (std::vector<double>{9, 9, 9, 9}));
  ASSERT_TRUE(run(files, 2, 3, 5).ok());
  EXPECT_EQ(losses_in(files), (std::vector<double>{9, 9, 5}));
  ASSERT_TRUE(run(files, 0, 1, 7).ok());
  EXPECT_EQ(losses_in(files), (std::vector<double>{7}));
}

TEST(RunJournal, KeepsEveryLineThatWasRecordedWhenTheProcessIsKilled) {
  SimulatedFiles files;
  RunJournal journal = RunJournal::begin(files, {"/", "a run", 0, 0}).value();
  for (uint64_t number = 1; number <= 3; ++number) {
    ASSERT_TRUE(journal.record(step(number, 1)).ok());
    EXPECT_EQ(losses_in(*files.after_kill()).size(), number);
  }
}

TEST(RunJournal, DropsHalfALine) {
  SimulatedFiles files;
  ASSERT_TRUE(run(files, 0, 3, 9).ok());
  const Bytes size = read_text(files, "/metrics.jsonl").value().size();
  files.truncate("/metrics.jsonl", size - 10);
  ASSERT_TRUE(run(files, 3, 4, 5).ok());
  EXPECT_EQ(losses_in(files), (std::vector<double>{9, 9, 5}));
}

TEST(RunJournal, NamesEventFilesInTheOrderOfStartsWhateverTheClock) {
  SimulatedFiles files;
  for (const double time : {1.7e9, 1.6e9, 1.6e9}) {
    ASSERT_TRUE(RunJournal::begin(files, {"/", "a run", 0, time}).ok());
  }
  std::vector<std::string> names = files.list("/").value();
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"events.out.tfevents.1700000000.bottomless",
                                             "events.out.tfevents.1700000001.bottomless",
                                             "events.out.tfevents.1700000002.bottomless",
                                             "metrics.jsonl"}));
}

class JournalFaults : public testing::TestWithParam<FileFault> {};

// At every request: the lines that a resumed run keeps are there before and after, and no draft is.
TEST_P(JournalFaults, LoseNoLineThatIsKept) {
  SimulatedFiles before;
  ASSERT_TRUE(run(before, 0, 4, 9).ok());
  uint64_t failures = 0;
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE("request " + std::to_string(n));
    ASSERT_LT(n, 100u);
    const auto files = before.after_kill();
    files->faults = {GetParam(), n};
    const Result<void> done = run(*files, 2, 4, 5);
    const bool fired = files->faults.fired > 0;
    files->faults = {};
    failures += !done.ok();
    if (done.ok()) {
      EXPECT_EQ(losses_in(*files), (std::vector<double>{9, 9, 5, 5}));
    }
    const std::vector<double> losses = losses_in(*files);
    ASSERT_GE(losses.size(), 2u);
    EXPECT_EQ(losses[0] + losses[1], 18);
    const Result<std::vector<std::string>> names = files->list("/");
    for (const std::string& name : names.value()) {
      EXPECT_EQ(name.find(".draft"), std::string::npos) << name;
    }
    if (HasFailure() || !fired) break;
  }
  EXPECT_TRUE(failures > 5 || GetParam() == FileFault::short_transfer);
}

INSTANTIATE_TEST_SUITE_P(Each, JournalFaults,
                         testing::Values(FileFault::io_error, FileFault::no_space,
                                         FileFault::short_transfer, FileFault::nothing_written));

TEST(RunJournal, OnAFullDiskSaysWhatToDo) {
  SimulatedFiles files;
  files.faults = {FileFault::no_space, 2};
  EXPECT_EQ(run(files, 0, 1, 1).error().message,
            "write '/metrics.jsonl': the disk is full; make room there, or name another directory");
}

// TensorBoard itself reads what was written.
TEST(TensorBoard, ShowsTheRunAndForgetsWhatWasDoneAgain) {
  const char* chosen = std::getenv("BOTTOMLESS_PYTHON");
  const std::string python = chosen == nullptr ? BOTTOMLESS_VENV_PYTHON : chosen;
  if (std::system((python + " -c 'import tensorboard' 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no tensorboard for " << python << "; BOTTOMLESS_PYTHON names another";
  }
  const TemporaryDirectory directory;
  const std::unique_ptr<Files> files = make_files();
  for (const auto& [from, to, loss] : {std::tuple(0u, 300u, 9.5), std::tuple(5u, 200u, 5.25)}) {
    RunJournal journal =
        RunJournal::begin(*files, {directory.path(), "a run", from, 1.7e9}).value();
    for (uint64_t number = from + 1; number <= to; ++number) {
      StepMetrics metrics = step(number, loss);
      if (number % 100 == 0) metrics.evaluation_loss = loss / 2;
      ASSERT_TRUE(journal.record(metrics).ok());
    }
  }
  const std::string command =
      python + " -B " + BOTTOMLESS_SCRIPT + " " + directory.path().string() + " 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  char part[512];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) text.append(part, got);
  EXPECT_EQ(::pclose(pipe), 0) << text;
  EXPECT_NE(text.find("loss/training 200 1..200 9.5*5 5.25*195 at 1700000200\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("loss/evaluation 2 100..200 2.625*2 at 1700000200\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("memory/bytes 200 1..200 1073741824.0*200 at"), std::string::npos) << text;
}

}  // namespace
}  // namespace bottomless::journal
