// One step of a program as its memory sees it: which blocks every operation touches, what is made and
// freed, and how long the computing takes in between. All else in this part is a function of it.
// Thread-safety: none; a value.
#pragma once
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/kind.h"

namespace bottomless {

inline constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

struct TraceUse {
  uint32_t block = 0;
  bool writes : 1 = false;
  bool fetches : 1 = true;  // what it held before is wanted; not so when it is new or overwritten
  bool born : 1 = false;    // made by the operation itself, so not there when it begins
};

struct TraceEvent {
  uint64_t signature = 0;  // the same for the same operation in the next step
  uint64_t so_far = 0;     // of all events up to this one, in their order
  uint32_t name = 0;
  float seconds = 0;  // from when it had all it needed until the next one asks
  uint32_t first_use = 0;
  uint32_t first_birth = 0;
  uint32_t first_death = 0;
};

enum class Since : uint8_t { this_step, last_step, long_ago };

struct TraceStorage {
  uint32_t first_block = 0;
  uint32_t blocks = 0;
  Kind kind = Kind::other;
  uint64_t serial = 0;  // of the storage itself, in this process
  Since since = Since::long_ago;
  uint64_t birth = 0;  // where in a step it was made, unless it was long ago
  uint32_t carried_from =
      kNone;             // since the last step: the storage made at the same place in this one
  bool survives = true;  // alive when the step ends
  bool renewed =
      false;  // has other content in every step, which cannot be had before the step begins
};

struct Trace {
  std::vector<TraceEvent> events;
  std::vector<TraceUse> uses;
  std::vector<uint32_t> births;  // storages
  std::vector<uint32_t> deaths;
  std::vector<TraceStorage> storages;
  std::vector<Bytes> block_bytes;  // as they count in memory
  std::vector<uint32_t> storage_of_block;
  std::vector<std::string> names;

  uint64_t signature() const { return events.empty() ? 0 : events.back().so_far; }
  std::span<const TraceUse> uses_of(size_t event) const;
  std::span<const uint32_t> births_of(size_t event) const;
  std::span<const uint32_t> deaths_of(size_t event) const;
  double seconds() const;      // of computing
  Bytes most_at_once() const;  // of blocks that one event uses
  Bytes own_bytes() const;
};

}  // namespace bottomless
