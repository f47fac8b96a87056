// How an engine is to work, and what it counts.
#pragma once
#include <bottomless/bytes.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "base/kind.h"
#include "base/log.h"

namespace bottomless {

enum class Movement {
  when_needed,  // blocks come when they are needed and leave by recency
  planned,      // steps are recorded, and blocks move ahead of their use
};

enum class Eviction {
  when_needed,
  eagerly,  // for tests: a block leaves as soon as nobody pins it, and its memory is poisoned
};

inline constexpr Bytes kMostPlanning = Bytes{32} << 20;  // of a limit, for traces and schedules

struct EngineOptions {
  Bytes limit = 0;           // of everything the engine holds: frames, charges and its own records
  Bytes fixed_overhead = 0;  // what the owner's own threads, rings and tables take of the limit
  Eviction eviction = Eviction::when_needed;
  Movement movement = Movement::planned;
  bool recorded = false;    // keep what last_step() tells
  Bytes least_managed = 0;  // the owner keeps smaller storages itself, and charges them
  size_t spare_places = 0;  // in the store, for the day it is full; see places.h
  std::function<void()> planning = [] {};  // called without any lock before a schedule is made
  // An operation that has waited for so long, for a disk that answers nothing, fails.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  LogSink log = [](LogLevel, std::string_view) {};
  const Clock* clock = &Clock::steady();  // of the timeout
  // Called, under the engine's lock, by a thread that is about to wait for room that others hold.
  std::function<void()> before_waiting = [] {};

  bool ahead_of_use() const {
    return movement == Movement::planned && eviction == Eviction::when_needed;
  }
};

struct EngineStats {
  Bytes limit_bytes = 0;
  Bytes peak_bytes = 0;  // frames + charges + overhead, the most there ever was
  Bytes read_bytes = 0;
  Bytes written_bytes = 0;
  Bytes gathered_bytes = 0;  // that came from sources
  Bytes overhead_bytes = 0;
  uint64_t faults = 0;
  uint64_t evictions = 0;
  uint64_t demand_fetches = 0;
  uint64_t prefetches = 0;
  uint64_t planned_hits = 0;  // of these, that were there when they were needed
  uint64_t plan_departures = 0;
  uint64_t schedules_made = 0;
  uint64_t deferred = 0;
  double stall_seconds = 0;
  KindBytes resident;
  Bytes charged_bytes = 0;
  uint64_t live_storages = 0;
};

}  // namespace bottomless
