#include "journal/run_journal.h"

#include <algorithm>
#include <utility>

#include "report/event_record.h"
#include "report/run_page.h"

namespace bottomless::journal {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr const char* kPage = "report.html";
constexpr std::string_view kEvents = "events.out.tfevents.";  // TensorBoard looks for this

std::string lines_up_to(std::string_view text, uint64_t step) {
  std::string kept;
  for (const StepMetrics& metrics : parse_metrics_lines(text)) {
    if (metrics.step <= step) kept += line_of(metrics) + "\n";
  }
  return kept;
}

// TensorBoard reads files in the order of their names; so each start gets a later number than all before it, whatever the
// clock says.
Result<std::string> next_events_name(Files& files, const JournalStart& start) {
  const Result<std::vector<std::string>> names = files.list(start.directory);
  if (!names.ok()) return names.error();
  constexpr size_t kDigits = 10;
  auto number = static_cast<uint64_t>(std::max(start.time, 0.0));
  for (const std::string& name : names.value()) {
    if (!name.starts_with(kEvents)) continue;
    uint64_t theirs = 0;
    for (const char c : name.substr(kEvents.size(), kDigits)) {
      if (c < '0' || c > '9') break;
      theirs = 10 * theirs + static_cast<uint64_t>(c - '0');
    }
    number = std::max(number, theirs + 1);
  }
  std::string digits = std::to_string(number);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return std::string(kEvents) + digits + ".bottomless";
}

}  // namespace

RunJournal::RunJournal(Files& files, JournalStart start, TextLog metrics, TextLog events)
    : files_(&files),
      start_(std::move(start)),
      metrics_(std::move(metrics)),
      events_(std::move(events)) {}

Result<RunJournal> RunJournal::begin(Files& files, JournalStart start) {
  const auto path = start.directory / kMetrics;
  std::string kept;
  if (start.resumed_step > 0) {
    const Result<std::string> text = read_text(files, path);
    if (!text.ok() && text.error().code != Code::not_found) return text.error();
    if (text.ok()) kept = lines_up_to(text.value(), start.resumed_step);
  }
  Result<TextLog> metrics = TextLog::begin(files, path, kept);
  if (!metrics.ok()) return std::move(metrics).error();
  const Result<std::string> name = next_events_name(files, start);
  if (!name.ok()) return name.error();
  Result<TextLog> events =
      TextLog::begin(files, start.directory / name.value(),
                     version_record(start.time) + start_record(start.time, start.resumed_step + 1));
  if (!events.ok()) return std::move(events).error();
  return RunJournal(files, std::move(start), std::move(metrics).value(), std::move(events).value());
}

Result<void> RunJournal::record(const StepMetrics& metrics) {
  const Result<void> written = metrics_.append(line_of(metrics) + "\n");
  if (!written.ok()) return written;
  return events_.append(scalar_record(metrics.time, metrics.step, scalars_of(metrics)));
}

Result<void> RunJournal::write_page() {
  const Result<std::string> text = read_text(*files_, start_.directory / kMetrics);
  if (!text.ok()) return text.error();
  const std::vector<StepMetrics> steps = parse_metrics_lines(text.value());
  const Result<TextLog> page =
      TextLog::begin(*files_, start_.directory / kPage, page_of(start_.name, steps));
  if (!page.ok()) return page.error();
  return {};
}

}  // namespace bottomless::journal
