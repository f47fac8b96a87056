#include "report/explain.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "plan/traffic_bound.h"
#include "report/print.h"

namespace bottomless {
namespace {

constexpr int kRounds = 200;  // of bound_traffic

// What a limit leaves for blocks is in the same proportion as it was in the run.
Forecast forecast(const StepRecord& record, Bytes limit) {
  const double share = static_cast<double>(limit) / static_cast<double>(record.limit);
  const auto capacity = static_cast<Bytes>(static_cast<double>(record.capacity) * share);
  const auto ahead = static_cast<Bytes>(static_cast<double>(record.ahead) * share);
  const Schedule schedule = make_schedule(record.trace, capacity, ahead);
  const Prediction prediction = predict(record.trace, schedule, capacity, record.rates);
  return {limit, prediction.seconds, prediction.read, prediction.written};
}

// With all the memory in the world, what is in use at once.
Bytes all_at_once(const Trace& trace) {
  const Schedule schedule = make_schedule(trace, ~Bytes{0} / 4);
  return *std::max_element(schedule.held.begin(), schedule.held.end());
}

// Around the limit that the step ran with, or below what it needs, if it had more than that.
std::vector<Bytes> other_limits(const StepRecord& record, Bytes needs) {
  constexpr double kAround[] = {0.25, 0.5, 0.75, 1.25, 1.5, 2.0, 4.0};
  constexpr double kBelow[] = {0.125, 0.25, 0.5, 0.75, 1.0};
  const Bytes least = record.trace.most_at_once();
  const bool plenty = needs <= record.capacity;
  // The part of a limit that is there for blocks is what has to hold them.
  const double whole = plenty ? static_cast<double>(needs) * static_cast<double>(record.limit) /
                                    static_cast<double>(std::max<Bytes>(record.capacity, 1))
                              : static_cast<double>(record.limit);
  std::vector<Bytes> limits;
  for (const double share :
       plenty ? std::span<const double>(kBelow) : std::span<const double>(kAround)) {
    const auto limit = static_cast<Bytes>(whole * share);
    if (limit >= 2 * least) limits.push_back(limit);
  }
  return limits;
}

std::string verdict_of(const StepRecord& record, const Explanation& found) {
  const double moved = static_cast<double>(found.read + found.written);
  const double disk = record.rates.both > 0 ? moved / record.rates.both : 0;
  if (moved == 0) {
    std::string text = "Everything fits: nothing moves, and the limit costs no time.";
    if (record.rates.both <= 0 && !found.forecasts.empty())
      return text +
             " How fast the disk is did not show: what less memory would cost cannot be told.";
    for (const Forecast& other : found.forecasts) {
      if (other.seconds <= 1.03 * found.planned.seconds)
        return text + print(" %s would do as well.", format_bytes(other.limit).c_str());
    }
    if (found.forecasts.empty())
      text += print(" What less would cost shows when it is tried with less than %s.",
                    format_bytes(found.needs).c_str());
    return text;
  }
  std::string text;
  if (found.stalled < 0.05 * found.measured) {
    text = print("Limited by computing: operators waited for %.1f %% of the step only.",
                 100 * found.stalled / found.measured);
  } else if (disk > 0.8 * found.measured) {
    text = print("Limited by the disk: %s have to move, which takes %.2f s of the step's %.2f s.",
                 format_bytes(found.read + found.written).c_str(), disk, found.measured);
  } else {
    text = print(
        "Operators waited for %.1f %% of the step, although the disk was not busy all the time: "
        "too little memory to look far enough ahead.",
        100 * found.stalled / found.measured);
  }
  for (const Forecast& other : found.forecasts) {
    if (other.limit <= record.limit || other.seconds > 0.97 * found.planned.seconds) continue;
    return text + print(" %s more would save %.2f s a step.",
                        format_bytes(other.limit - record.limit).c_str(),
                        found.planned.seconds - other.seconds);
  }
  for (const Forecast& other : found.forecasts) {
    if (other.limit >= record.limit || other.seconds > 1.03 * found.planned.seconds) continue;
    return text + print(" %s would do as well.", format_bytes(other.limit).c_str());
  }
  return text;
}

nlohmann::json json_of(const Forecast& forecast) {
  return {{"limit_bytes", forecast.limit},
          {"step_seconds", forecast.seconds},
          {"read_bytes", forecast.read},
          {"written_bytes", forecast.written}};
}

}  // namespace

Explanation explain(const StepRecord& record) {
  Explanation found;
  found.measured = record.seconds();
  found.computing = record.trace.seconds();
  std::map<std::string, OperatorStall> stalls;
  for (size_t i = 0; i < record.moments.size(); ++i) {
    const double waited = record.moments[i].ready - record.moments[i].asked;
    OperatorStall& stall = stalls[record.trace.names[record.trace.events[i].name]];
    stall.seconds += waited;
    ++stall.times;
    found.stalled += waited;
  }
  for (auto& [name, stall] : stalls) {
    stall.name = name;
    found.stalls.push_back(stall);
  }
  std::sort(found.stalls.begin(), found.stalls.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  found.read = record.moments.back().read - record.moments.front().read;
  found.written = record.moments.back().written - record.moments.front().written;
  for (size_t block = 0; block < record.trace.block_bytes.size(); ++block) {
    const TraceStorage& storage = record.trace.storages[record.trace.storage_of_block[block]];
    if (storage.since == Since::last_step && storage.carried_from != kNone)
      continue;  // counted where made
    found.bytes_of[static_cast<size_t>(storage.kind)] += record.trace.block_bytes[block];
  }
  found.bound =
      bound_traffic(record.trace, record.capacity, record.schedule.moved(), kRounds).bytes;
  found.planned = forecast(record, record.limit);
  found.needs = all_at_once(record.trace);
  for (const Bytes limit : other_limits(record, found.needs)) {
    found.forecasts.push_back(forecast(record, limit));
    if (found.forecasts.back().read + found.forecasts.back().written == 0) break;
  }
  found.verdict = verdict_of(record, found);
  return found;
}

std::string text_of(const Explanation& found) {
  std::string text = found.verdict + "\n\n";
  text += print("a step         %8.2f s measured, %.2f s predicted, %.2f s of it computing\n",
                found.measured, found.planned.seconds, found.computing);
  text += print(
      "read, written  %s, %s measured; %s, %s planned; in that memory no schedule moves less than "
      "%s\n",
      format_bytes(found.read).c_str(), format_bytes(found.written).c_str(),
      format_bytes(found.planned.read).c_str(), format_bytes(found.planned.written).c_str(),
      format_bytes(found.bound).c_str());
  text += print("in use at once %s\n", format_bytes(found.needs).c_str());
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (found.bytes_of[kind] > 0)
      text += print("  %-12s %s\n", std::string(kKindNames[kind]).c_str(),
                    format_bytes(found.bytes_of[kind]).c_str());
  }
  text += "\n     memory    s/step       read    written\n";
  std::vector<Forecast> all = found.forecasts;
  all.push_back(found.planned);
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.limit < b.limit; });
  for (const Forecast& each : all) {
    text += print("%11s  %8.2f  %9s  %9s%s\n", format_bytes(each.limit).c_str(), each.seconds,
                  format_bytes(each.read).c_str(), format_bytes(each.written).c_str(),
                  each.limit == found.planned.limit ? "   as it ran" : "");
  }
  text += "\nwaiting, by operator\n";
  for (size_t i = 0; i < std::min<size_t>(found.stalls.size(), 8); ++i) {
    if (found.stalls[i].seconds < 0.001) break;
    text += print("  %-40s %8.3f s in %lu calls\n", found.stalls[i].name.c_str(),
                  found.stalls[i].seconds, static_cast<unsigned long>(found.stalls[i].times));
  }
  return text;
}

std::string json_of(const Explanation& found) {
  nlohmann::json json{{"step_seconds", found.measured}, {"computing_seconds", found.computing},
                      {"stall_seconds", found.stalled}, {"read_bytes", found.read},
                      {"written_bytes", found.written}, {"least_bytes", found.bound},
                      {"needed_bytes", found.needs},    {"predicted", json_of(found.planned)},
                      {"verdict", found.verdict}};
  for (size_t kind = 0; kind < kKinds; ++kind)
    json["bytes"][std::string(kKindNames[kind])] = found.bytes_of[kind];
  json["forecasts"] = nlohmann::json::array();
  for (const Forecast& each : found.forecasts) json["forecasts"].push_back(json_of(each));
  json["stalls"] = nlohmann::json::array();
  for (const OperatorStall& each : found.stalls) {
    json["stalls"].push_back(
        {{"name", each.name}, {"seconds", each.seconds}, {"times", each.times}});
  }
  return json.dump();
}

}  // namespace bottomless
