#include "report/page.h"

#include <algorithm>
#include <numeric>

#include "report/page_parts.h"
#include "report/print.h"

namespace bottomless {
namespace {

constexpr size_t kColumns = 450;  // a step may have many thousands of events

using ByKind = std::array<double, kKinds>;

// The step cut into columns of equal time: what was where at the end of each, and what moved in it.
struct Column {
  ByKind in_memory{};
  ByKind on_disk{};              // and not in memory
  double read = 0, written = 0;  // bytes per second
  double stalled = 0;            // share of the time
};

// What exists while each event runs, wherever it is.
std::vector<ByKind> living(const Trace& trace) {
  const auto bytes_of = [&](const TraceStorage& storage) {
    double bytes = 0;
    for (uint32_t i = 0; i < storage.blocks; ++i)
      bytes += static_cast<double>(trace.block_bytes[storage.first_block + i]);
    return bytes;
  };
  ByKind now{};
  for (const TraceStorage& storage : trace.storages) {
    if (storage.since != Since::this_step)
      now[static_cast<size_t>(storage.kind)] += bytes_of(storage);
  }
  std::vector<ByKind> all;
  for (size_t event = 0; event < trace.events.size(); ++event) {
    for (const uint32_t born : trace.births_of(event)) {
      const TraceStorage& storage = trace.storages[born];
      now[static_cast<size_t>(storage.kind)] += bytes_of(storage);
    }
    all.push_back(now);
    for (const uint32_t dead : trace.deaths_of(event)) {
      const TraceStorage& storage = trace.storages[dead];
      now[static_cast<size_t>(storage.kind)] -= bytes_of(storage);
    }
  }
  return all;
}

std::vector<Column> columns_of(const StepRecord& record) {
  std::vector<Column> columns(kColumns);
  const double begin = record.moments.front().asked;
  const double each = std::max(record.seconds(), 1e-9) / kColumns;
  const auto at = [&](double time) {
    return std::clamp<size_t>(static_cast<size_t>((time - begin) / each), 0, kColumns - 1);
  };
  const std::vector<ByKind> alive = living(record.trace);
  size_t filled = 0;
  Column now;
  const auto fill_until = [&](size_t end) {
    for (; filled < end; ++filled) {
      columns[filled].in_memory = now.in_memory;
      columns[filled].on_disk = now.on_disk;
    }
  };
  for (size_t i = 0; i < record.moments.size(); ++i) {
    const Moment& moment = record.moments[i];
    const size_t column = at(moment.ready);
    fill_until(column);
    for (size_t kind = 0; kind < kKinds; ++kind) {
      now.in_memory[kind] = static_cast<double>(moment.resident[kind]);
      now.on_disk[kind] = std::max(0.0, alive[i][kind] - now.in_memory[kind]);
    }
    columns[at(moment.asked)].stalled += (moment.ready - moment.asked) / each;
    if (i == 0) continue;
    // Transfers go on between two events: spread what came over the time it took.
    const Moment& before = record.moments[i - 1];
    const size_t first = at(before.ready);
    const auto count = static_cast<double>(column - first + 1);
    for (size_t c = first; c <= column; ++c) {
      columns[c].read += static_cast<double>(moment.read - before.read) / count / each;
      columns[c].written += static_cast<double>(moment.written - before.written) / count / each;
    }
  }
  fill_until(kColumns);
  return columns;
}

double x_of(size_t column) { return static_cast<double>(column) / kColumns; }

std::string frame(const std::string& top, double seconds) {
  ChartLabels labels{.top = top};
  for (size_t i = 0; i < labels.along.size(); ++i) {
    labels.along[i] = print("%.2f s", seconds * static_cast<double>(i) / 4);
  }
  return chart_begin(labels);
}

// Kinds on top of each other, up to `top`.
std::string areas(const std::vector<Column>& columns, ByKind Column::*where, double top) {
  std::string svg;
  std::vector<double> base(kColumns, 0);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    std::string above, below;
    for (size_t c = 0; c < kColumns; ++c) {
      below = print("%.1f,%.1f ", chart_x(x_of(c)), chart_y(base[c] / top)) + below;
      base[c] += (columns[c].*where)[kind];
      above += print("%.1f,%.1f ", chart_x(x_of(c)), chart_y(base[c] / top));
    }
    svg += "<polygon fill='" + std::string(kColours[kind]) + "' points='" + above + below + "'/>";
  }
  return svg;
}

std::string key_of_kinds() {
  std::string key = "<p class='key'>";
  for (size_t kind = 0; kind < kKinds; ++kind) {
    key += key_entry(kColours[kind], kKindNames[kind]);
  }
  return key;
}

std::string memory_chart(const StepRecord& record, const std::vector<Column>& columns) {
  std::string svg = frame(format_bytes(record.limit), record.seconds());
  svg += areas(columns, &Column::in_memory, static_cast<double>(record.limit));
  svg += chart_ceiling(1) + kChartEnd;
  return svg + key_of_kinds() + "<b></b>limit</p>";
}

std::string away_chart(const StepRecord& record, const std::vector<Column>& columns) {
  double top = 0;
  for (const Column& column : columns)
    top = std::max(top, std::accumulate(column.on_disk.begin(), column.on_disk.end(), 0.0));
  if (top <= 0) return "<p>Nothing was on the disk alone.</p>";
  return frame(format_bytes(static_cast<Bytes>(top)), record.seconds()) +
         areas(columns, &Column::on_disk, top) + kChartEnd + key_of_kinds() + "</p>";
}

std::string line(const std::vector<Column>& columns, double Column::*what, double top,
                 const char* colour) {
  std::vector<ChartPoint> points;
  for (size_t c = 0; c < kColumns; ++c) points.emplace_back(x_of(c), columns[c].*what / top);
  return chart_line(points, colour);
}

// Neighbouring columns together: single transfers come in lumps.
std::vector<Column> smoothed(const std::vector<Column>& columns) {
  constexpr size_t kReach = 4;
  std::vector<Column> result(columns.size());
  for (size_t c = 0; c < columns.size(); ++c) {
    const size_t from = c < kReach ? 0 : c - kReach;
    const size_t to = std::min(columns.size(), c + kReach + 1);
    for (size_t i = from; i < to; ++i) {
      result[c].read += columns[i].read / static_cast<double>(to - from);
      result[c].written += columns[i].written / static_cast<double>(to - from);
      result[c].stalled += columns[i].stalled / static_cast<double>(to - from);
    }
  }
  return result;
}

std::string disk_chart(const StepRecord& record, const std::vector<Column>& raw) {
  const std::vector<Column> columns = smoothed(raw);
  double top = record.rates.both;
  for (const Column& column : columns) top = std::max({top, column.read, column.written});
  if (top <= 0) return "<p>Nothing moved.</p>";
  std::string svg = frame(format_bytes(static_cast<Bytes>(top)) + "/s", record.seconds());
  svg += line(columns, &Column::read, top, kColours[0]) +
         line(columns, &Column::written, top, kColours[1]);
  svg += chart_ceiling(record.rates.both / top) + kChartEnd;
  return svg + "<p class='key'>" + key_entry(kColours[0], "read") +
         key_entry(kColours[1], "written") +
         print("<b></b>both together, while the disk was busy: %s/s</p>",
               format_bytes(static_cast<Bytes>(record.rates.both)).c_str());
}

std::string stall_bars(const Explanation& found) {
  if (found.stalled < 0.001) return "<p>No operator waited.</p>";
  std::string rows;
  for (size_t i = 0; i < std::min<size_t>(found.stalls.size(), 10); ++i) {
    const OperatorStall& stall = found.stalls[i];
    if (stall.seconds < 0.001) break;
    rows += print(
        "<tr><td>%s</td><td class='bar'><i style='width:%.1f%%'></i></td><td>%.3f s</td><td>%lu "
        "calls</td></tr>",
        escaped(stall.name).c_str(), 100 * stall.seconds / found.stalls.front().seconds,
        stall.seconds, static_cast<unsigned long>(stall.times));
  }
  return "<table>" + rows + "</table>";
}

std::string row(const char* what, const std::string& measured, const std::string& planned) {
  return print("<tr><td>%s</td><td>%s</td><td>%s</td></tr>", what, measured.c_str(),
               planned.c_str());
}

std::string comparison(const Explanation& found) {
  return "<table><tr><th></th><th>measured</th><th>planned</th></tr>" +
         row("seconds in the step", print("%.2f", found.measured),
             print("%.2f", found.planned.seconds)) +
         row("of these waiting", print("%.2f", found.stalled),
             print("%.2f", std::max(0.0, found.planned.seconds - found.computing))) +
         row("read", format_bytes(found.read), format_bytes(found.planned.read)) +
         row("written", format_bytes(found.written), format_bytes(found.planned.written)) +
         row("no schedule moves less, in what it plans with", "", format_bytes(found.bound)) +
         "</table>";
}

std::string forecasts(const Explanation& found) {
  std::vector<Forecast> all = found.forecasts;
  all.push_back(found.planned);
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.limit < b.limit; });
  std::string rows = "<tr><th>memory</th><th>seconds a step</th><th>read</th><th>written</th></tr>";
  for (const Forecast& each : all) {
    rows += print("<tr%s><td>%s</td><td>%.2f</td><td>%s</td><td>%s</td></tr>",
                  each.limit == found.planned.limit ? " class='now'" : "",
                  format_bytes(each.limit).c_str(), each.seconds, format_bytes(each.read).c_str(),
                  format_bytes(each.written).c_str());
  }
  return "<table>" + rows + "</table>";
}

}  // namespace

std::string page_of(const StepRecord& record, const Explanation& found) {
  const std::vector<Column> columns = columns_of(record);
  std::string page = page_head("Bottomless: a step");
  page += print("<h1>A step under a limit of %s: %.2f s</h1>", format_bytes(record.limit).c_str(),
                found.measured);
  page += "<p class='verdict'>" + escaped(found.verdict) + "</p>";
  page += "<h2>In memory, by kind</h2>" + memory_chart(record, columns);
  page += "<h2>On the disk alone, by kind</h2>" + away_chart(record, columns);
  page += "<h2>What the disk did</h2>" + disk_chart(record, columns);
  page += "<h2>Waiting, by operator</h2>" + stall_bars(found);
  page += "<h2>As planned and as it went</h2>" + comparison(found);
  page += print(
              "<h2>With more memory, or less</h2><p>Without moving anything the step needs %s for "
              "its blocks.</p>",
              format_bytes(found.needs).c_str()) +
          forecasts(found);
  return page + kPageEnd;
}

}  // namespace bottomless
