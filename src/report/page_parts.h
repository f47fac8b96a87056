// What the pages are made of, so that they look alike: head, charts, keys.
// Thread-safety: free functions without state.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/kind.h"

namespace bottomless {

inline constexpr std::array<const char*, kKinds> kColours{"#3b6fb6", "#d1793b", "#6a9f58",
                                                          "#b35c8a", "#9a9a9a"};

std::string escaped(std::string_view text);

// All up to the first heading; a page ends with kPageEnd.
std::string page_head(std::string_view title);
inline constexpr const char* kPageEnd = "</body></html>\n";

// A chart is an SVG in which x and y go from 0 to 1. It begins with its axes and ends with kChartEnd.
struct ChartLabels {
  std::string top, bottom = "0";
  std::array<std::string, 5> along;  // evenly spaced
};
std::string chart_begin(const ChartLabels& labels);
inline constexpr const char* kChartEnd = "</svg>";

double chart_x(double share);
double chart_y(double share);

using ChartPoint = std::pair<double, double>;
enum class Stroke { thin, usual, dotted };  // dotted: a dot at each point, too
std::string chart_line(std::span<const ChartPoint> points, const char* colour,
                       Stroke stroke = Stroke::usual);
std::string chart_ceiling(double share);

// A coloured square and a name, for the line below a chart.
std::string key_entry(const char* colour, std::string_view name);

}  // namespace bottomless
