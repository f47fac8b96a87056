// What is said about a step, in words, as a page and as a file that can be read again.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "report/explain.h"
#include "report/page.h"
#include "report/trace_file.h"
#include "support/random.h"
#include "support/trace_maker.h"

namespace bottomless {
namespace {

// A step that went exactly as predicted.
StepRecord record_of(const Trace& trace, Bytes limit, double rate) {
  StepRecord record;
  record.trace = trace;
  record.limit = limit;
  record.capacity = limit * 9 / 10;
  record.ahead = limit / 10;
  record.rates.both = rate;
  record.schedule = make_schedule(trace, record.capacity, record.ahead);
  const Prediction prediction = predict(trace, record.schedule, record.capacity, record.rates);
  double now = 100;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    Moment moment{.asked = now, .ready = now + static_cast<double>(prediction.stalls[i])};
    moment.resident[0] = record.schedule.held[i];
    const double share = static_cast<double>(i) / static_cast<double>(trace.events.size() - 1);
    moment.read = static_cast<Bytes>(share * static_cast<double>(prediction.read));
    moment.written = static_cast<Bytes>(share * static_cast<double>(prediction.written));
    record.moments.push_back(moment);
    now = moment.ready + static_cast<double>(trace.events[i].seconds);
  }
  record.ended = now;
  return record;
}

const Trace kTrace = training_step({.layers = 20, .parameter = 1000, .activation = 100});

TEST(Explain, PredictsWhatWasSimulated) {
  const Explanation found = explain(record_of(kTrace, 20'000, 2000));
  EXPECT_NEAR(found.planned.seconds, found.measured, 0.02 * found.measured);
  EXPECT_EQ(found.planned.read, found.read);
  EXPECT_EQ(found.planned.written, found.written);
  EXPECT_GT(found.bound, 0u);
  EXPECT_LE(found.bound, found.read + found.written);
}

TEST(Explain, MoreMemoryNeverMovesMoreAndAtLastNothing) {
  const Explanation found = explain(record_of(kTrace, 30'000, 5000));
  ASSERT_GE(found.forecasts.size(), 4u);
  for (size_t i = 1; i < found.forecasts.size(); ++i) {
    EXPECT_LE(found.forecasts[i].read + found.forecasts[i].written,
              found.forecasts[i - 1].read + found.forecasts[i - 1].written);
  }
  EXPECT_EQ(found.forecasts.back().read + found.forecasts.back().written, 0u);
  EXPECT_GE(found.needs, 20u * 3000u);
}

TEST(Explain, SaysWhatLimitsTheStep) {
  const auto verdict = [](Bytes limit, double rate) {
    return explain(record_of(kTrace, limit, rate)).verdict;
  };
  EXPECT_NE(verdict(1'000'000, 1000).find("Everything fits"), std::string::npos);
  EXPECT_NE(verdict(20'000, 1e9).find("Limited by computing"), std::string::npos);
  const std::string slow = verdict(20'000, 500);
  EXPECT_NE(slow.find("Limited by the disk"), std::string::npos) << slow;
  EXPECT_NE(slow.find("more would save"), std::string::npos) << slow;
}

TEST(Explain, NamesTheOperatorsThatWaited) {
  const Explanation found = explain(record_of(kTrace, 20'000, 500));
  ASSERT_FALSE(found.stalls.empty());
  EXPECT_GT(found.stalls.front().seconds, 0);
  EXPECT_GE(found.stalls.front().seconds, found.stalls.back().seconds);
  const std::string text = text_of(found);
  EXPECT_NE(text.find(found.stalls.front().name), std::string::npos);
  EXPECT_NE(text.find("as it ran"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(json_of(found)).contains("verdict"));
}

TEST(TraceFile, CanBeReadAgain) {
  const StepRecord before = record_of(kTrace, 20'000, 2000);
  const Result<StepRecord> after = read_trace(write_trace(before));
  ASSERT_TRUE(after.ok()) << after.error().message;
  EXPECT_EQ(json_of(explain(after.value())), json_of(explain(before)));
}

TEST(TraceFile, IsWhatPerfettoShows) {
  const auto json = nlohmann::json::parse(write_trace(record_of(kTrace, 20'000, 500)));
  size_t operators = 0, waiting = 0, counters = 0;
  for (const auto& event : json.at("traceEvents")) {
    operators += event.value("cat", "") == "operator";
    waiting += event.value("cat", "") == "stall";
    counters += event.at("ph") == "C";
    EXPECT_TRUE(event.contains("pid") && event.contains("name"));
  }
  EXPECT_EQ(operators, kTrace.events.size());
  EXPECT_EQ(counters, 2 * kTrace.events.size());
  EXPECT_GT(waiting, 0u);
}

TEST(TraceFile, AnythingElseIsAnError) {
  const std::string good = write_trace(record_of(kTrace, 20'000, 2000));
  EXPECT_FALSE(read_trace("").ok());
  EXPECT_FALSE(read_trace("[]").ok());
  EXPECT_FALSE(read_trace("{}").ok());
  EXPECT_FALSE(read_trace(good.substr(0, good.size() / 2)).ok());
  // Numbers that lead nowhere are noticed, whichever they are.
  Random random(64);
  BOTTOMLESS_TRACE_SEED(random);
  auto json = nlohmann::json::parse(good);
  for (int i = 0; i < 200; ++i) {
    auto broken = json;
    auto& part = broken["bottomless"];
    const char* names[] = {"births", "deaths", "storage_of_block", "uses", "storages", "events"};
    auto& list = part[names[random.below(6)]];
    auto& entry = list[random.below(list.size())];
    (entry.is_array() ? entry[random.below(entry.size())] : entry) = random.below(1u << 20);
    (void)read_trace(broken.dump());  // an error or another trace, but nothing worse
  }
}

TEST(Page, IsOneFileWithAllItsParts) {
  const StepRecord record = record_of(kTrace, 20'000, 500);
  const std::string page = page_of(record, explain(record));
  for (const char* part : {"<!doctype html>", "In memory, by kind", "On the disk alone",
                           "What the disk did", "Waiting, by operator", "As planned and as it went",
                           "With more memory, or less", "</html>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("http"), std::string::npos) << "nothing is loaded from anywhere";
  EXPECT_EQ(page.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace bottomless
