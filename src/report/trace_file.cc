#include "report/trace_file.h"

#include <nlohmann/json.hpp>

namespace bottomless {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

// For the eye: operators and their waiting as slices, memory and transfers as counters.
json shown(const StepRecord& record) {
  json events = json::array();
  const double begin = record.moments.front().asked;
  const auto micros = [&](double seconds) { return (seconds - begin) * 1e6; };
  for (size_t i = 0; i < record.moments.size(); ++i) {
    const Moment& moment = record.moments[i];
    const TraceEvent& event = record.trace.events[i];
    if (moment.ready - moment.asked > 20e-6) {
      events.push_back({{"name", "waits"},
                        {"cat", "stall"},
                        {"ph", "X"},
                        {"pid", 1},
                        {"tid", 2},
                        {"ts", micros(moment.asked)},
                        {"dur", (moment.ready - moment.asked) * 1e6},
                        {"args", {{"operator", record.trace.names[event.name]}}}});
    }
    events.push_back({{"name", record.trace.names[event.name]},
                      {"cat", "operator"},
                      {"ph", "X"},
                      {"pid", 1},
                      {"tid", 1},
                      {"ts", micros(moment.ready)},
                      {"dur", static_cast<double>(event.seconds) * 1e6}});
    json memory = json::object();
    for (size_t kind = 0; kind < kKinds; ++kind)
      memory[std::string(kKindNames[kind])] = moment.resident[kind];
    events.push_back({{"name", "memory"},
                      {"ph", "C"},
                      {"pid", 1},
                      {"ts", micros(moment.ready)},
                      {"args", memory}});
    events.push_back({{"name", "moved"},
                      {"ph", "C"},
                      {"pid", 1},
                      {"ts", micros(moment.ready)},
                      {"args",
                       {{"read", moment.read - record.moments.front().read},
                        {"written", moment.written - record.moments.front().written}}}});
  }
  for (const auto& [thread, name] : {std::pair(1, "operators"), {2, "waiting"}}) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 1},
                      {"tid", thread},
                      {"args", {{"name", name}}}});
  }
  return events;
}

template <class T, class Write>
json list(const std::vector<T>& all, Write write) {
  json result = json::array();
  for (const T& each : all) result.push_back(write(each));
  return result;
}

json whole(const StepRecord& record) {
  const Trace& trace = record.trace;
  return {
      {"version", kVersion},
      {"limit", record.limit},
      {"capacity", record.capacity},
      {"ahead", record.ahead},
      {"ended", record.ended},
      {"rates", {record.rates.read, record.rates.write, record.rates.both}},
      {"names", trace.names},
      {"block_bytes", trace.block_bytes},
      {"storage_of_block", trace.storage_of_block},
      {"births", trace.births},
      {"deaths", trace.deaths},
      {"events", list(trace.events,
                      [](const TraceEvent& e) {
                        return json{e.name, e.seconds, e.first_use, e.first_birth, e.first_death};
                      })},
      {"uses", list(trace.uses,
                    [](const TraceUse& u) {
                      return json{u.block, u.writes + 2 * u.fetches + 4 * u.born};
                    })},
      {"storages", list(trace.storages,
                        [](const TraceStorage& s) {
                          return json{s.first_block, s.blocks,       s.kind,
                                      s.since,       s.carried_from, s.survives};
                        })},
      {"moments", list(record.moments, [](const Moment& m) {
         return json{m.asked, m.ready, m.resident, m.read, m.written};
       })}};
}

constexpr Bytes kMostBytes = Bytes{1} << 60;  // beyond any machine; sums of it are still numbers

bool is_possible(const StepRecord& record) {
  if (record.limit > kMostBytes || record.capacity > kMostBytes || record.ahead > kMostBytes)
    return false;
  Bytes used = 0;
  for (const TraceUse& use : record.trace.uses) {
    const Bytes bytes = record.trace.block_bytes[use.block];
    if (bytes > kMostBytes - used) return false;
    used += bytes;
  }
  return true;
}

// Every index of the trace leads somewhere; what follows need not ask again.
bool is_consistent(const Trace& trace) {
  const auto below = [](const auto& all, size_t end) {
    for (const uint32_t each : all) {
      if (each >= end) return false;
    }
    return true;
  };
  if (trace.storage_of_block.size() != trace.block_bytes.size()) return false;
  if (!below(trace.storage_of_block, trace.storages.size())) return false;
  if (!below(trace.births, trace.storages.size())) return false;
  if (!below(trace.deaths, trace.storages.size())) return false;
  TraceEvent last{};
  for (const TraceEvent& event : trace.events) {
    if (event.name >= trace.names.size() || event.first_use < last.first_use ||
        event.first_birth < last.first_birth || event.first_death < last.first_death)
      return false;
    last = event;
  }
  if (last.first_use > trace.uses.size() || last.first_birth > trace.births.size() ||
      last.first_death > trace.deaths.size())
    return false;
  for (const TraceUse& use : trace.uses) {
    if (use.block >= trace.block_bytes.size()) return false;
  }
  for (const TraceStorage& storage : trace.storages) {
    const uint64_t end = uint64_t{storage.first_block} + storage.blocks;
    if (end > trace.block_bytes.size() || storage.kind > Kind::other ||
        storage.since > Since::long_ago)
      return false;
    if (storage.carried_from == kNone) continue;
    if (storage.carried_from >= trace.storages.size() ||
        trace.storages[storage.carried_from].blocks != storage.blocks)
      return false;
  }
  return true;
}

StepRecord parse(const json& from) {
  StepRecord record;
  record.limit = from.at("limit");
  record.capacity = from.at("capacity");
  record.ahead = from.at("ahead");
  record.ended = from.at("ended");
  record.rates = {from.at("rates").at(0), from.at("rates").at(1), from.at("rates").at(2)};
  Trace& trace = record.trace;
  from.at("names").get_to(trace.names);
  from.at("block_bytes").get_to(trace.block_bytes);
  from.at("storage_of_block").get_to(trace.storage_of_block);
  from.at("births").get_to(trace.births);
  from.at("deaths").get_to(trace.deaths);
  for (const json& e : from.at("events")) {
    trace.events.push_back({.name = e.at(0),
                            .seconds = e.at(1),
                            .first_use = e.at(2),
                            .first_birth = e.at(3),
                            .first_death = e.at(4)});
  }
  for (const json& u : from.at("uses")) {
    const int how = u.at(1);
    trace.uses.push_back({.block = u.at(0),
                          .writes = (how & 1) != 0,
                          .fetches = (how & 2) != 0,
                          .born = (how & 4) != 0});
  }
  for (const json& s : from.at("storages")) {
    trace.storages.push_back({.first_block = s.at(0),
                              .blocks = s.at(1),
                              .kind = s.at(2),
                              .since = s.at(3),
                              .carried_from = s.at(4),
                              .survives = s.at(5)});
  }
  for (const json& m : from.at("moments"))
    record.moments.push_back({m.at(0), m.at(1), m.at(2), m.at(3), m.at(4)});
  return record;
}

}  // namespace

std::string write_trace(const StepRecord& record) {
  return json{
      {"displayTimeUnit", "ms"}, {"traceEvents", shown(record)}, {"bottomless", whole(record)}}
      .dump();
}

Result<StepRecord> read_trace(std::string_view text) {
  try {
    const json file = json::parse(text);
    if (!file.is_object() || !file.contains("bottomless"))
      return Error{Code::invalid_argument, "this is no trace that --trace wrote"};
    if (file.at("bottomless").at("version") != kVersion)
      return Error{Code::invalid_argument, "the trace was written by another version"};
    StepRecord record = parse(file.at("bottomless"));
    if (record.empty() || record.moments.size() != record.trace.events.size() ||
        record.limit == 0 || !is_consistent(record.trace) || !is_possible(record))
      return Error{Code::invalid_argument, "the trace contradicts itself"};
    record.schedule = make_schedule(record.trace, record.capacity, record.ahead);
    return record;
  } catch (const json::exception& error) {
    return Error{Code::invalid_argument, std::string("this is no trace: ") + error.what()};
  }
}

}  // namespace bottomless
