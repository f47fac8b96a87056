// What a training run writes about itself into its directory while it goes:
//   metrics.jsonl          a line for each step (report/metrics.h)
//   events.out.tfevents.*  the same for TensorBoard, one file for each start of the run
//   report.html            the run as a page (report/run_page.h), made from the former when write_page() is called
// A run that goes on from step n loses the lines of later steps, and TensorBoard is told to forget them.
// Thread-safety: one thread at a time.
// Lifetime: the Files must outlive it.
#pragma once
#include <bottomless/result.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/files.h"
#include "journal/text_log.h"
#include "report/metrics.h"

namespace bottomless::journal {

struct JournalStart {
  std::filesystem::path directory;  // exists
  std::string name;                 // of what is trained, for the page
  uint64_t resumed_step = 0;        // so many steps are done; 0 begins anew
  double time = 0;                  // seconds since 1970
};

class RunJournal {
 public:
  static Result<RunJournal> begin(Files& files, JournalStart start);

  // A step is done. Lines that are there already are not lost by a failure.
  Result<void> record(const StepMetrics& metrics);
  // Of all steps so far; the page before, if any, is replaced.
  Result<void> write_page();

 private:
  RunJournal(Files& files, JournalStart start, TextLog metrics, TextLog events);

  Files* files_;
  JournalStart start_;
  TextLog metrics_, events_;
};

}  // namespace bottomless::journal
