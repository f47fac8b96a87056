#include "plan/belady.h"

#include <set>
#include <utility>

namespace bottomless {
namespace {

// The first use of each block in a step, as an event, and for every use the next one.
std::vector<uint64_t> next_uses(const Trace& trace, const std::vector<uint32_t>& after) {
  const uint64_t events = trace.events.size();
  std::vector<uint64_t> next(trace.uses.size(), Schedule::kNever);
  std::vector<uint64_t> coming(trace.block_bytes.size(), Schedule::kNever);
  const auto sweep = [&](uint64_t add, auto note) {
    for (size_t event = events; event-- > 0;) {
      const size_t first = trace.events[event].first_use;
      const size_t count = trace.uses_of(event).size();
      for (size_t u = first; u < first + count; ++u) note(u);
      for (size_t u = first; u < first + count; ++u) coming[trace.uses[u].block] = event + add;
    }
  };
  sweep(events, [](size_t) {});
  // What comes first in the step after, seen from this one.
  std::vector<uint64_t> later(coming.size(), Schedule::kNever);
  for (size_t block = 0; block < after.size(); ++block) {
    if (after[block] != kNone) later[block] = coming[after[block]];
  }
  coming = std::move(later);
  sweep(0, [&](size_t u) { next[u] = coming[trace.uses[u].block]; });
  return next;
}

// Runs over a few steps, so that what is in memory when a step begins is what the one before left there.
class Belady {
 public:
  Belady(const Trace& trace, Bytes capacity)
      : trace_(trace),
        capacity_(capacity),
        after_(successors(trace)),
        next_(next_uses(trace, after_)),
        blocks_(trace.block_bytes.size()) {}

  std::vector<Schedule::Use> run() {
    constexpr uint64_t kSteps =
        3;  // the first begins with nothing; the last decides what it keeps of the one before
    for (step_ = 0; step_ < kSteps; ++step_) {
      kept_before_ = std::exchange(kept_, std::vector<bool>(trace_.uses.size(), true));
      for (size_t event = 0; event < trace_.events.size(); ++event) run_event(event);
      carry_over();
    }
    std::vector<Schedule::Use> uses;
    for (size_t u = 0; u < trace_.uses.size(); ++u) uses.push_back({next_[u], kept_before_[u]});
    return uses;
  }

 private:
  struct State {
    bool resident = false;
    uint32_t last_use = kNone;
    uint64_t used_in = 0;  // the step of last_use
    uint64_t next = 0;     // counted from the very beginning
  };

  void run_event(size_t event) {
    const std::span<const TraceUse> uses = trace_.uses_of(event);
    const size_t first = trace_.events[event].first_use;
    for (size_t i = 0; i < uses.size(); ++i) bring_in(uses[i], static_cast<uint32_t>(first + i));
    make_room();
    for (size_t i = 0; i < uses.size(); ++i) {
      State& state = blocks_[uses[i].block];
      const uint64_t next = next_[first + i];
      state.next =
          next == Schedule::kNever ? Schedule::kNever : next + step_ * trace_.events.size();
      idle_.insert({state.next, uses[i].block});
    }
    for (const uint32_t storage : trace_.deaths_of(event)) {
      const TraceStorage& dead = trace_.storages[storage];
      for (uint32_t i = 0; i < dead.blocks; ++i) forget(dead.first_block + i);
    }
  }

  void bring_in(const TraceUse& use, uint32_t index) {
    State& state = blocks_[use.block];
    if (state.resident) {
      idle_.erase({state.next, use.block});
    } else {
      state.resident = true;
      in_memory_ += trace_.block_bytes[use.block];
    }
    state.last_use = index;
    state.used_in = step_;
  }

  void make_room() {
    while (in_memory_ > capacity_ && !idle_.empty()) {
      const uint32_t block = std::prev(idle_.end())->second;
      State& state = blocks_[block];
      if (state.used_in == step_) kept_[state.last_use] = false;
      if (state.used_in + 1 == step_) kept_before_[state.last_use] = false;
      leave(block);
    }
  }

  void leave(uint32_t block) {
    State& state = blocks_[block];
    if (!state.resident) return;
    idle_.erase({state.next, block});
    in_memory_ -= trace_.block_bytes[block];
    state.resident = false;
  }

  void forget(uint32_t block) {
    leave(block);
    blocks_[block] = {};
  }

  // What was made in this step is known by another name in the next, or not at all.
  void carry_over() {
    std::vector<State> now = std::move(blocks_);
    blocks_.assign(now.size(), {});
    idle_.clear();
    in_memory_ = 0;
    for (size_t block = 0; block < now.size(); ++block) {
      if (after_[block] == kNone) continue;
      State& state = blocks_[after_[block]];
      state = now[block];
      if (!state.resident) continue;
      in_memory_ += trace_.block_bytes[block];
      idle_.insert({state.next, after_[block]});
    }
  }

  const Trace& trace_;
  const Bytes capacity_;
  const std::vector<uint32_t> after_;
  const std::vector<uint64_t> next_;  // like Trace::uses
  std::vector<State> blocks_;
  std::set<std::pair<uint64_t, uint32_t>> idle_;
  Bytes in_memory_ = 0;
  uint64_t step_ = 0;
  std::vector<bool> kept_, kept_before_;  // like Trace::uses
};

}  // namespace

std::vector<Schedule::Use> keep_soonest(const Trace& trace, Bytes capacity) {
  return Belady(trace, capacity).run();
}

}  // namespace bottomless
