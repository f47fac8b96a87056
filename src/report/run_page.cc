#include "report/run_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/status_line.h"
#include "report/page_parts.h"
#include "report/print.h"

namespace bottomless {
namespace {

constexpr size_t kColumns = 450;  // a run may have many thousands of steps

using Steps = std::span<const StepMetrics>;
using Value = std::function<double(const StepMetrics&)>;
using Series = std::vector<std::pair<double, double>>;  // step, value

Series series_of(Steps steps, const Value& value) {
  Series series;
  for (const StepMetrics& step : steps) {
    const double found = value(step);
    if (std::isfinite(found)) series.emplace_back(static_cast<double>(step.step), found);
  }
  return series;
}

// Neighbours together, so that no more points are left than can be seen.
Series thinned(const Series& series) {
  Series result;
  const size_t each = series.size() / kColumns + 1;
  for (size_t i = 0; i < series.size(); i += each) {
    const size_t end = std::min(series.size(), i + each);
    double step = 0, value = 0;
    for (size_t j = i; j < end; ++j) step += series[j].first, value += series[j].second;
    const auto count = static_cast<double>(end - i);
    result.emplace_back(step / count, value / count);
  }
  return result;
}

// Each value as the mean of those around it. Where a run begins, the loss falls too steeply for a mean of one side.
Series smoothed(const Series& series) {
  const size_t reach = std::min<size_t>(series.size() / 50, 50);
  Series result;
  for (size_t i = 0; i < series.size(); ++i) {
    const size_t before = std::min(reach, i);
    const size_t after = std::min(i < reach ? i : reach, series.size() - 1 - i);
    double sum = 0;
    for (size_t j = i - before; j <= i + after; ++j) sum += series[j].second;
    result.emplace_back(series[i].first, sum / static_cast<double>(before + after + 1));
  }
  return result;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void include(const Series& series) {
    for (const auto& [step, value] : series)
      low = std::min(low, value), high = std::max(high, value);
  }
};

class Chart {
 public:
  Chart(Steps steps, Range range, std::string bottom, std::string top)
      : last_(static_cast<double>(steps.back().step)), range_(range) {
    ChartLabels labels{.top = std::move(top), .bottom = std::move(bottom)};
    for (size_t i = 0; i < labels.along.size(); ++i) {
      const double step = last_ * static_cast<double>(i) / 4;
      labels.along[i] = print(last_ < 40 ? "%s%g" : "%s%.0f", i == 0 ? "step " : "", step);
    }
    svg_ = chart_begin(labels);
  }

  void line(const Series& series, const char* colour, Stroke stroke = Stroke::usual) {
    std::vector<ChartPoint> points;
    for (const auto& [step, value] : series) points.emplace_back(x(step), y(value));
    svg_ += chart_line(points, colour, stroke);
  }
  void ceiling(double value) { svg_ += chart_ceiling(y(value)); }
  std::string text() const { return svg_ + kChartEnd; }

 private:
  double x(double step) const { return step / std::max(last_, 1.0); }
  double y(double value) const {
    return (value - range_.low) / std::max(range_.high - range_.low, 1e-12);
  }

  const double last_;
  const Range range_;
  std::string svg_;
};

double evaluation_of(const StepMetrics& step) {
  return step.evaluation_loss.value_or(std::numeric_limits<double>::quiet_NaN());
}

std::string loss_chart(Steps steps) {
  const Series training = series_of(steps, [](const auto& step) { return step.loss; });
  const Series evaluation = series_of(steps, evaluation_of);
  if (training.empty()) return "<p>The loss was never a number.</p>";
  const Series thin = thinned(training);
  Range range;
  range.include(thin);
  range.include(evaluation);
  Chart chart(steps, range, print("%.3f", range.low), print("%.3f", range.high));
  chart.line(thin, kColours[0], Stroke::thin);
  chart.line(thinned(smoothed(training)), kColours[0]);
  chart.line(thinned(evaluation), kColours[1], Stroke::dotted);
  std::string key = "<p class='key'>" + key_entry(kColours[0], "training, smoothed");
  if (!evaluation.empty()) key += key_entry(kColours[1], "evaluation");
  return chart.text() + key + "</p>";
}

std::string speed_chart(Steps steps) {
  const Series speed =
      thinned(series_of(steps, [](const auto& step) { return step.tokens_per_second; }));
  // Where the share is known, so is the whole.
  const Series possible = thinned(series_of(steps, [](const StepMetrics& step) {
    const double share = step.hardware_share.value_or(0);
    return share > 0 ? step.tokens_per_second / share : std::numeric_limits<double>::quiet_NaN();
  }));
  Range range{0, 1e-9};
  range.include(speed);
  range.include(possible);
  Chart chart(steps, range, "0", print("%.0f/s", range.high));
  chart.line(speed, kColours[0]);
  chart.line(possible, kColours[4]);
  std::string key = "<p class='key'>" + key_entry(kColours[0], "tokens a second");
  if (!possible.empty()) key += key_entry(kColours[4], "what the hardware allows");
  return chart.text() + key + "</p>";
}

std::string bytes_chart(Steps steps, const Value& used, Bytes limit, const char* what) {
  const Series series = thinned(series_of(steps, used));
  Range range{0, std::max(static_cast<double>(limit), 1.0)};
  range.include(series);
  Chart chart(steps, range, "0", format_bytes(static_cast<Bytes>(range.high)));
  chart.line(series, kColours[2]);
  if (limit > 0) chart.ceiling(static_cast<double>(limit));
  return chart.text() + "<p class='key'>" + key_entry(kColours[2], what) +
         (limit > 0 ? "<b></b>limit</p>" : "</p>");
}

double seconds_of(Steps steps) {
  double seconds = 0;
  for (const StepMetrics& step : steps) seconds += step.seconds;
  return seconds;
}

std::string verdict_of(Steps steps) {
  const Series loss = smoothed(series_of(steps, [](const auto& step) { return step.loss; }));
  const Series evaluation = series_of(steps, evaluation_of);
  const auto tokens = static_cast<double>(steps.back().tokens);
  const std::string seen =
      tokens < 1e6 ? print("%.0f tokens", tokens) : print("%.1f million tokens", tokens / 1e6);
  std::string text = print("%lu steps, %s, %s.", static_cast<unsigned long>(steps.back().step),
                           seen.c_str(), duration_text(seconds_of(steps)).c_str());
  if (!loss.empty()) {
    text += print(" Loss from %.3f to %.3f", loss.front().second, loss.back().second);
    text += evaluation.empty() ? "." : print(", %.3f in evaluation.", evaluation.back().second);
  }
  return text;
}

std::string row(const char* what, const std::string& value) {
  return print("<tr><td>%s</td><td>%s</td></tr>", what, value.c_str());
}

std::string numbers(Steps steps) {
  const StepMetrics& last = steps.back();
  Bytes most = 0;
  double best = std::numeric_limits<double>::infinity();
  for (const StepMetrics& step : steps) {
    most = std::max(most, step.memory);
    if (step.evaluation_loss.has_value()) best = std::min(best, *step.evaluation_loss);
  }
  std::string rows = row("epochs", print("%.2f", last.epochs));
  if (std::isfinite(best)) {
    rows += row("best evaluation loss", print("%.4f", best));
    rows += row("its perplexity", print("%.2f", std::exp(best)));
  }
  rows += row("most memory", format_bytes(most) + " of " + format_bytes(last.memory_limit));
  rows += row("read from the disk", format_bytes(last.read));
  rows += row("written to the disk", format_bytes(last.written));
  if (last.received.has_value())
    rows += row("received from other ranks", format_bytes(static_cast<Bytes>(*last.received)));
  return "<table>" + rows + "</table>";
}

}  // namespace

std::string page_of(std::string_view name, Steps steps) {
  std::string page = page_head("Bottomless: a training run");
  page += "<h1>" + escaped(name) + "</h1>";
  if (steps.empty()) return page + "<p class='verdict'>No step was done.</p>" + kPageEnd;
  const StepMetrics& last = steps.back();
  page += "<p class='verdict'>" + escaped(verdict_of(steps)) + "</p>";
  page += "<h2>Loss</h2>" + loss_chart(steps);
  page += "<h2>Speed</h2>" + speed_chart(steps);
  page += "<h2>Memory</h2>" + bytes_chart(
                                  steps,
                                  [](const auto& step) { return static_cast<double>(step.memory); },
                                  last.memory_limit, "in use");
  page +=
      "<h2>Disk</h2>" + bytes_chart(
                            steps, [](const auto& step) { return static_cast<double>(step.disk); },
                            last.disk_limit, "in use");
  page += "<h2>Learning rate</h2>";
  const Series rate =
      thinned(series_of(steps, [](const auto& step) { return step.learning_rate; }));
  Range range{0, 1e-12};
  range.include(rate);
  Chart chart(steps, range, "0", print("%.2g", range.high));
  chart.line(rate, kColours[3]);
  return page + chart.text() + "<h2>In numbers</h2>" + numbers(steps) + kPageEnd;
}

}  // namespace bottomless
