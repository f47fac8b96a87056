#include "cli/bench_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace bottomless::cli {
namespace {

struct Figures {
  double bytes_per_second;
  double cpu_seconds_per_gib;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Figures medians(const std::vector<Rate>& rounds) {
  std::vector<double> speeds;
  std::vector<double> costs;
  for (const Rate& rate : rounds) {
    speeds.push_back(rate.bytes_per_second());
    costs.push_back(rate.cpu_seconds_per_gib());
  }
  return {median(std::move(speeds)), median(std::move(costs))};
}

template <class... Values>
std::string print(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string join(const std::vector<std::string>& words, const char* between) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : between) + word;
  return all;
}

std::string heading(const BenchReport& report, const BenchRow& row) {
  std::string text = join(row.directories, " and ") + ": " +
                     (row.directories.size() == 1 ? "" : "together, ") + "a file of " +
                     format_bytes(report.bytes) + (row.directories.size() == 1 ? "" : " each") +
                     ", " + report.engine + "\n";
  text += print("  %-6s %9s %9s  %9s %9s", "", "size", "in flight", "GB/s", "CPU s/GiB");
  if (!row.fio.empty()) {
    text += print("  %9s %9s  %9s %9s", "fio GB/s", "CPU s/GiB", "ours/fio", "CPU");
  }
  return text + "\n";
}

std::string line(const BenchRow& row) {
  const Figures ours = medians(row.ours);
  std::string text = print("  %-6s %9s %9u  %9.3f %9.3f", name_of(row.load.pattern),
                           format_bytes(row.load.size).c_str(), row.load.depth,
                           ours.bytes_per_second * 1e-9, ours.cpu_seconds_per_gib);
  if (!row.fio.empty()) {
    const Figures fio = medians(row.fio);
    text += print("  %9.3f %9.3f  %9.2f %9.2f", fio.bytes_per_second * 1e-9,
                  fio.cpu_seconds_per_gib, ours.bytes_per_second / fio.bytes_per_second,
                  ours.cpu_seconds_per_gib / fio.cpu_seconds_per_gib);
  }
  return text + "\n";
}

nlohmann::json json_of(const std::vector<Rate>& rounds) {
  const Figures figures = medians(rounds);
  auto each = nlohmann::json::array();
  for (const Rate& rate : rounds) {
    each.push_back(
        {{"bytes", rate.bytes}, {"seconds", rate.seconds}, {"cpu_seconds", rate.cpu_seconds}});
  }
  return {{"bytes_per_second", figures.bytes_per_second},
          {"cpu_seconds_per_gib", figures.cpu_seconds_per_gib},
          {"rounds", std::move(each)}};
}

nlohmann::json json_of(const BenchRow& row) {
  nlohmann::json json{{"directories", row.directories},
                      {"pattern", name_of(row.load.pattern)},
                      {"size_bytes", row.load.size},
                      {"in_flight", row.load.depth},
                      {"ours", json_of(row.ours)}};
  if (!row.fio.empty()) {
    const Figures ours = medians(row.ours);
    const Figures fio = medians(row.fio);
    json["fio"] = json_of(row.fio);
    json["bandwidth_ratio"] = ours.bytes_per_second / fio.bytes_per_second;
    json["cpu_ratio"] = ours.cpu_seconds_per_gib / fio.cpu_seconds_per_gib;
  }
  return json;
}

}  // namespace

std::string table_of(const BenchReport& report) {
  std::string text;
  const BenchRow* before = nullptr;
  for (const BenchRow& row : report.rows) {
    if (before == nullptr || before->directories != row.directories)
      text += (before == nullptr ? "" : "\n") + heading(report, row);
    text += line(row);
    before = &row;
  }
  return text;
}

nlohmann::json json_of(const BenchReport& report) {
  auto rows = nlohmann::json::array();
  for (const BenchRow& row : report.rows) rows.push_back(json_of(row));
  return {{"file_bytes", report.bytes},
          {"engine", report.engine},
          {"fio", report.fio.empty() ? nlohmann::json() : nlohmann::json(report.fio)},
          {"mixed", "half reads, half writes"},
          {"measurements", std::move(rows)}};
}

}  // namespace bottomless::cli
