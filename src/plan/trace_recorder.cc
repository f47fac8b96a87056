#include "plan/trace_recorder.h"

#include <utility>

namespace bottomless {

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint32_t TraceRecorder::index_of(TracedStorage& storage) {
  if (storage.seen_in == step_) return storage.index;
  TraceStorage entry{.first_block = static_cast<uint32_t>(trace_.block_bytes.size()),
                     .blocks = storage.blocks,
                     .kind = storage.kind,
                     .serial = storage.serial,
                     .since = storage.born_in == step_       ? Since::this_step
                              : storage.born_in + 1 == step_ ? Since::last_step
                                                             : Since::long_ago,
                     .birth = storage.birth,
                     .renewed = storage.renewed};
  storage.seen_in = step_;
  storage.index = static_cast<uint32_t>(trace_.storages.size());
  trace_.storages.push_back(entry);
  for (uint32_t i = 0; i < storage.blocks; ++i) {
    trace_.block_bytes.push_back(i + 1 == storage.blocks ? storage.last_bytes
                                                         : storage.block_bytes);
    trace_.storage_of_block.push_back(storage.index);
  }
  return storage.index;
}

void TraceRecorder::born(TracedStorage& storage) {
  storage.serial = next_serial_++;
  storage.born_in = step_;
  storage.born_at = all_events_;
  if (trace_.events.empty() || full()) return;
  const size_t ordinal = trace_.births.size() - trace_.events.back().first_birth;
  storage.birth = (trace_.events.size() << 20) + ordinal;
  trace_.births.push_back(index_of(storage));
}

void TraceRecorder::gave_away(TracedStorage& storage) {
  died(storage);
  storage.given_away = true;
}

void TraceRecorder::died(TracedStorage& storage) {
  if (trace_.events.empty() || full() || storage.given_away) return;
  const uint32_t index = index_of(storage);
  trace_.storages[index].survives = false;
  trace_.deaths.push_back(index);
}

void TraceRecorder::labelled(const TracedStorage& storage) {
  if (storage.seen_in == step_) trace_.storages[storage.index].kind = storage.kind;
}

void TraceRecorder::begin(std::string_view name, uint64_t signature) {
  ++all_events_;
  if (full()) return;
  trace_.events.push_back({.signature = signature,
                           .so_far = mix(trace_.signature(), signature),
                           .name = name_of(name),
                           .first_use = static_cast<uint32_t>(trace_.uses.size()),
                           .first_birth = static_cast<uint32_t>(trace_.births.size()),
                           .first_death = static_cast<uint32_t>(trace_.deaths.size())});
}

void TraceRecorder::use(TracedStorage& storage, uint32_t block, TraceUse how) {
  if (trace_.events.empty() || full()) return;
  how.block = trace_.storages[index_of(storage)].first_block + block;
  // An operation that names a block twice uses it once, in all the ways it was named.
  for (size_t i = trace_.events.back().first_use; i < trace_.uses.size(); ++i) {
    TraceUse& known = trace_.uses[i];
    if (known.block != how.block) continue;
    known.writes = known.writes || how.writes;
    known.fetches = known.fetches || how.fetches;
    return;
  }
  trace_.uses.push_back(how);
}

void TraceRecorder::computed(double seconds) {
  if (!trace_.events.empty()) trace_.events.back().seconds = static_cast<float>(seconds);
}

// A step that follows itself: what was made in the last one was made at the same place in this one.
void TraceRecorder::find_origins() {
  std::unordered_map<uint64_t, uint32_t> made;
  for (uint32_t i = 0; i < trace_.storages.size(); ++i) {
    if (trace_.storages[i].since == Since::this_step) made.emplace(trace_.storages[i].birth, i);
  }
  for (TraceStorage& storage : trace_.storages) {
    if (storage.since != Since::last_step) continue;
    const auto found = made.find(storage.birth);
    if (found != made.end() && trace_.storages[found->second].blocks == storage.blocks)
      storage.carried_from = found->second;
  }
}

Trace TraceRecorder::end_step() {
  const bool whole = !full();
  find_origins();
  gave_up_ = false;
  Trace ended = std::exchange(trace_, {});
  ++step_;
  if (!whole) return {};
  ended.names.assign(names_.begin(), names_.end());
  return ended;
}

uint32_t TraceRecorder::name_of(std::string_view name) {
  if (const auto known = name_index_.find(name); known != name_index_.end()) return known->second;
  names_.emplace_back(name);
  const auto index = static_cast<uint32_t>(names_.size() - 1);
  name_index_.emplace(names_.back(), index);
  return index;
}

}  // namespace bottomless
