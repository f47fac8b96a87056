#include "report/page_parts.h"

#include <algorithm>

#include "report/print.h"

namespace bottomless {
namespace {

constexpr double kWidth = 900, kHeight = 240, kLeft = 104, kBottom = 30;

constexpr const char* kStyle =
    R"(body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}h2{font-size:1.1em;margin:2em 0 .4em}.verdict{font-size:1.15em;background:#f3f6fa;padding:.8em 1em;
border-left:4px solid #3b6fb6}svg{width:100%;height:auto}.axis{stroke:#888}.label{font-size:12px;fill:#555}
.ceiling{stroke:#c33;stroke-dasharray:5 4}table{border-collapse:collapse}td,th{padding:.2em .9em;text-align:right;
border-bottom:1px solid #e5e5e5}td:first-child,th:first-child{text-align:left}.now{background:#f3f6fa;font-weight:600}
.bar{width:22em}.bar i{display:block;height:.9em;background:#d1793b}.key span{display:inline-block;width:.9em;height:.9em;
margin:0 .3em 0 1em;vertical-align:-.1em}.key b{display:inline-block;width:1.6em;border-top:2px dashed #c33;margin:0 .3em
0 1em;vertical-align:.3em})";

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return result;
}

std::string page_head(std::string_view title) {
  return "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\"><title>" +
         escaped(title) + "</title><style>\n" + kStyle + "</style></head><body>\n";
}

double chart_x(double share) { return kLeft + (kWidth - kLeft) * share; }
double chart_y(double share) { return (kHeight - kBottom) * (1 - share) + 5; }

std::string chart_begin(const ChartLabels& labels) {
  std::string svg = print("<svg viewBox='0 0 %.0f %.0f' role='img'>", kWidth, kHeight + 10);
  svg += print("<line x1='%.0f' y1='%.0f' x2='%.0f' y2='%.0f' class='axis'/>", kLeft, chart_y(0),
               kWidth, chart_y(0));
  svg += print("<text x='%.0f' y='14' class='label' text-anchor='end'>%s</text>", kLeft - 6,
               labels.top.c_str());
  svg += print("<text x='%.0f' y='%.0f' class='label' text-anchor='end'>%s</text>", kLeft - 6,
               chart_y(0), labels.bottom.c_str());
  for (size_t i = 0; i < labels.along.size(); ++i) {
    const char* anchor = i == 4 ? "end" : i == 0 ? "start" : "middle";
    svg += print("<text x='%.0f' y='%.0f' class='label' text-anchor='%s'>%s</text>",
                 chart_x(static_cast<double>(i) / 4), kHeight - 5, anchor, labels.along[i].c_str());
  }
  return svg;
}

std::string chart_line(std::span<const ChartPoint> points, const char* colour, Stroke stroke) {
  std::string line, dots;
  for (const auto& [x, y] : points) {
    const double up = std::clamp(y, 0.0, 1.0);
    line += print("%.1f,%.1f ", chart_x(x), chart_y(up));
    if (stroke == Stroke::dotted) {
      dots +=
          print("<circle cx='%.1f' cy='%.1f' r='3' fill='%s'/>", chart_x(x), chart_y(up), colour);
    }
  }
  return print("<polyline fill='none' stroke='%s' stroke-width='1.5'%s points='", colour,
               stroke == Stroke::thin ? " stroke-opacity='.3'" : "") +
         line + "'/>" + dots;
}

std::string chart_ceiling(double share) {
  return print("<line x1='%.0f' y1='%.1f' x2='%.0f' y2='%.1f' class='ceiling'/>", kLeft,
               chart_y(share), kWidth, chart_y(share));
}

std::string key_entry(const char* colour, std::string_view name) {
  return print("<span style='background:%s'></span>", colour) + escaped(name) + " ";
}

}  // namespace bottomless
