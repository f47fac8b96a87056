// Writes down a step while it runs. Storages that outlive a step keep their identity; those made in a
// step are known by their place in it.
// Thread-safety: none; the engine locks.
#pragma once
#include <bottomless/bytes.h>

#include <deque>
#include <string_view>
#include <unordered_map>

#include "plan/trace.h"

namespace bottomless {

// What the recorder knows of a storage; its owner keeps it there.
struct TracedStorage {
  Kind kind = Kind::other;
  uint32_t blocks = 0;
  Bytes block_bytes = 0;  // of each but the last
  Bytes last_bytes = 0;
  uint64_t serial = 0;
  uint64_t born_in = 0;  // the step
  uint64_t birth = 0;    // its place in that step
  uint64_t born_at = 0;  // the event, counted from the very first
  uint64_t seen_in = 0;  // the step that `index` is of
  uint32_t index = kNone;
  bool renewed = false;  // see TraceStorage
  bool given_away = false;
};

class TraceRecorder {
 public:
  // More events than this are not a step that repeats: the rest is not recorded.
  static constexpr size_t kMostEvents = 1 << 18;

  void born(TracedStorage& storage);
  void died(TracedStorage& storage);
  // The step is done with it: whenever it dies, for its steps it has died here.
  void gave_away(TracedStorage& storage);
  void labelled(const TracedStorage& storage);  // its kind has become known
  void begin(std::string_view name, uint64_t signature);
  void use(TracedStorage& storage, uint32_t block, TraceUse how);
  void computed(double seconds);  // by the event that began last

  // The rest of this step is not recorded.
  void give_up() { gave_up_ = true; }
  bool full() const { return gave_up_ || trace_.events.size() >= kMostEvents; }

  // Ends the step and begins the next. The trace is empty if it was too long.
  Trace end_step();

  // Gives the storage its index in the step that is being recorded.
  uint32_t index_of(TracedStorage& storage);
  uint64_t step() const { return step_; }
  uint64_t all_events() const { return all_events_; }  // of all steps
  uint64_t signature() const { return trace_.signature(); }
  size_t events() const { return trace_.events.size(); }
  Bytes own_bytes() const { return trace_.own_bytes(); }

 private:
  uint32_t name_of(std::string_view name);
  void find_origins();

  Trace trace_;
  std::deque<std::string> names_;
  std::unordered_map<std::string_view, uint32_t> name_index_;  // views of names_
  bool gave_up_ = false;
  uint64_t step_ = 1;
  uint64_t all_events_ = 0;
  uint64_t next_serial_ = 1;
};

uint64_t mix(uint64_t hash, uint64_t value);

}  // namespace bottomless
