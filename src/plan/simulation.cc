#include "plan/simulation.h"

#include <algorithm>
#include <queue>

namespace bottomless {
namespace {

class Simulation {
 public:
  Simulation(const Trace& trace, const Schedule& schedule, Bytes capacity, const Rates& rates)
      : trace_(trace),
        schedule_(schedule),
        rates_(rates),
        after_(successors(trace)),
        blocks_(trace.block_bytes.size()),
        capacity_(capacity) {}

  Prediction run() {
    constexpr int kSteps = 3;  // until what is in memory at the begin is what a step leaves there
    Prediction result;
    for (int step = 0; step < kSteps; ++step) {
      const double began = now_;
      result = {};
      result.stalls.resize(trace_.events.size());
      next_fetch_ = 0;
      for (size_t event = 0; event < trace_.events.size(); ++event) run_event(event, result);
      carry_over();
      result.seconds = now_ - began;
    }
    result.computing = trace_.seconds();
    return result;
  }

 private:
  enum class Where : uint8_t { nowhere, memory, disk, coming, leaving };
  struct State {
    Where where = Where::nowhere;
    bool dirty = false;
    double ready = 0;  // when what is coming is there, or what is leaving has left
  };
  struct Leaving {
    double when;
    uint32_t block;
    Bytes bytes;
    bool operator>(const Leaving& other) const { return when > other.when; }
  };

  void run_event(size_t event, Prediction& result) {
    const double asked = now_;
    const std::span<const TraceUse> uses = trace_.uses_of(event);
    const size_t first = trace_.events[event].first_use;
    for (const TraceUse& use : uses) bring_in(use, result);
    begin_fetches(event, result);
    result.stalls[event] = static_cast<float>(now_ - asked);
    now_ += trace_.events[event].seconds;
    for (size_t i = 0; i < uses.size(); ++i) {
      if (!schedule_.uses[first + i].keep) release(uses[i].block, result);
    }
    for (const uint32_t storage : trace_.deaths_of(event)) {
      const TraceStorage& dead = trace_.storages[storage];
      for (uint32_t i = 0; i < dead.blocks; ++i) forget(dead.first_block + i);
    }
  }

  void bring_in(const TraceUse& use, Prediction& result) {
    State& state = blocks_[use.block];
    if (state.where == Where::disk || state.where == Where::nowhere) {
      const bool read = use.fetches && state.where == Where::disk;
      take(trace_.block_bytes[use.block]);
      state.where = Where::memory;
      if (read) now_ = std::max(now_, read_done(use.block, result));
    } else if (state.where == Where::coming) {
      now_ = std::max(now_, state.ready);
      state.where = Where::memory;
    } else if (state.where == Where::leaving) {
      state.where = Where::memory;  // it has not left yet and stays; see settle()
    }
    state.dirty = state.dirty || use.writes;
  }

  void begin_fetches(size_t event, Prediction& result) {
    settle();
    while (next_fetch_ < schedule_.fetches.size() &&
           schedule_.fetches[next_fetch_].start <= event) {
      const uint32_t block = schedule_.fetches[next_fetch_].block;
      State& state = blocks_[block];
      if (state.where == Where::disk) {
        if (in_memory_ + trace_.block_bytes[block] > capacity_) return;
        in_memory_ += trace_.block_bytes[block];
        state.ready = read_done(block, result);
        state.where = Where::coming;
      } else if (state.where == Where::leaving) {
        state.where = Where::memory;
      }
      ++next_fetch_;
    }
  }

  double read_done(uint32_t block, Prediction& result) {
    result.read += trace_.block_bytes[block];
    return transfer(trace_.block_bytes[block], rates_.read, reads_until_);
  }

  double transfer(Bytes bytes, double rate, double& until) {
    const bool shared = rates_.both > 0;
    double& lane = shared ? reads_until_ : until;
    const double speed = shared ? rates_.both : rate;
    lane = std::max(lane, now_) + (speed > 0 ? static_cast<double>(bytes) / speed : 0);
    return lane;
  }

  void release(uint32_t block, Prediction& result) {
    State& state = blocks_[block];
    if (state.where != Where::memory) return;
    const Bytes bytes = trace_.block_bytes[block];
    if (!state.dirty) {
      state.where = Where::disk;
      in_memory_ -= bytes;
      return;
    }
    state.where = Where::leaving;
    state.dirty = false;
    state.ready = transfer(bytes, rates_.write, writes_until_);
    result.written += bytes;
    leaving_.push({state.ready, block, bytes});
  }

  // Takes memory, waiting for what is leaving.
  void take(Bytes bytes) {
    settle();
    while (in_memory_ + bytes > capacity_ && !leaving_.empty()) {
      now_ = std::max(now_, leaving_.top().when);
      settle();
    }
    in_memory_ += bytes;
  }

  void settle() {
    while (!leaving_.empty() && leaving_.top().when <= now_) {
      State& state = blocks_[leaving_.top().block];
      if (state.where == Where::leaving && state.ready == leaving_.top().when) {
        state.where = Where::disk;
        in_memory_ -= leaving_.top().bytes;
      }
      leaving_.pop();
    }
  }

  void forget(uint32_t block) {
    State& state = blocks_[block];
    if (state.where == Where::memory || state.where == Where::coming ||
        state.where == Where::leaving)
      in_memory_ -= trace_.block_bytes[block];
    state = {};
  }

  void carry_over() {
    while (!leaving_.empty()) {  // names change: what is leaving counts as gone
      State& state = blocks_[leaving_.top().block];
      if (state.where == Where::leaving && state.ready == leaving_.top().when) {
        state.where = Where::disk;
        in_memory_ -= leaving_.top().bytes;
      }
      leaving_.pop();
    }
    std::vector<State> before = std::move(blocks_);
    blocks_.assign(before.size(), {});
    in_memory_ = 0;
    for (size_t block = 0; block < before.size(); ++block) {
      if (after_[block] == kNone) continue;
      blocks_[after_[block]] = before[block];
      const Where where = before[block].where;
      if (where == Where::memory || where == Where::coming) in_memory_ += trace_.block_bytes[block];
    }
  }

  const Trace& trace_;
  const Schedule& schedule_;
  const Rates rates_;
  const std::vector<uint32_t> after_;
  std::vector<State> blocks_;
  const Bytes capacity_;
  Bytes in_memory_ = 0;
  double now_ = 0;
  double reads_until_ = 0;
  double writes_until_ = 0;
  size_t next_fetch_ = 0;
  std::priority_queue<Leaving, std::vector<Leaving>, std::greater<>> leaving_;
};

}  // namespace

Prediction predict(const Trace& trace, const Schedule& schedule, Bytes capacity,
                   const Rates& rates) {
  if (trace.events.empty()) return {};
  return Simulation(trace, schedule, capacity, rates).run();
}

}  // namespace bottomless
