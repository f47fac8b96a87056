#include "plan/schedule.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/belady.h"
#include "plan/range_maximum.h"
#include "plan/traffic_bound.h"

namespace bottomless {
namespace {

constexpr int kRounds = 100;
constexpr double kGoodEnough = 1.02;

}  // namespace

std::vector<uint32_t> successors(const Trace& trace) {
  std::vector<uint32_t> after(trace.block_bytes.size(), kNone);
  for (const TraceStorage& storage : trace.storages) {
    const TraceStorage* before = nullptr;  // what it was in the step before
    if (storage.since == Since::long_ago) before = &storage;
    if (storage.carried_from != kNone) before = &trace.storages[storage.carried_from];
    if (before == nullptr || !before->survives || storage.renewed) continue;
    for (uint32_t i = 0; i < storage.blocks; ++i)
      after[before->first_block + i] = storage.first_block + i;
  }
  return after;
}

namespace {

// When a block dies within the step; kNever: it does not.
std::vector<uint64_t> deaths(const Trace& trace) {
  std::vector<uint64_t> dies(trace.block_bytes.size(), Schedule::kNever);
  for (size_t event = 0; event < trace.events.size(); ++event) {
    for (const uint32_t storage : trace.deaths_of(event)) {
      const TraceStorage& dead = trace.storages[storage];
      for (uint32_t i = 0; i < dead.blocks; ++i) dies[dead.first_block + i] = event;
    }
  }
  return dies;
}

std::vector<bool> renewed_blocks(const Trace& trace) {
  std::vector<bool> renewed(trace.block_bytes.size());
  for (size_t block = 0; block < renewed.size(); ++block)
    renewed[block] = trace.storages[trace.storage_of_block[block]].renewed;
  return renewed;
}

// How much is in memory at each event of a step that follows itself, and what can be changed about it.
class Occupancy {
 public:
  Occupancy(const Trace& trace, Schedule& schedule, Bytes capacity)
      : trace_(trace),
        schedule_(schedule),
        capacity_(static_cast<int64_t>(capacity)),
        held_(trace.events.size()) {
    const std::vector<uint64_t> dies = deaths(trace);
    for (size_t event = 0; event < trace.events.size(); ++event) {
      const size_t first = trace.events[event].first_use;
      for (size_t u = first; u < first + trace.uses_of(event).size(); ++u) {
        const uint32_t block = trace.uses[u].block;
        held_.add(event, event + 1, static_cast<int64_t>(trace.block_bytes[block]));
        uint64_t until = schedule.uses[u].next;
        if (until == Schedule::kNever)
          until = dies[block] == Schedule::kNever ? 0 : dies[block] + 1;
        stays_.push_back({event + 1, until, trace.block_bytes[block]});
        if (schedule.uses[u].keep) add(stays_.back());
      }
    }
  }

  // Where more is kept than fits, what is wanted last has to leave.
  void relieve() {
    const uint64_t events = trace_.events.size();
    std::set<std::pair<uint64_t, size_t>> here;  // kept from before, by the next use
    // Twice round: what is kept past the end of the step is in the way at its begin.
    for (uint64_t at = 0; at < 2 * events; ++at) {
      while (!here.empty() && here.begin()->first <= at) here.erase(here.begin());
      while (held_.at(at % events) > capacity_ && !here.empty()) {
        const size_t last = std::prev(here.end())->second;
        here.erase(std::prev(here.end()));
        if (!std::exchange(schedule_.uses[last].keep, false)) continue;
        remove(stays_[last]);
      }
      const size_t first = trace_.events[at % events].first_use;
      for (size_t u = first; u < first + trace_.uses_of(at % events).size(); ++u) {
        if (schedule_.uses[u].keep && stays_[u].until > stays_[u].from)
          here.insert({stays_[u].until + (at / events) * events, u});
      }
    }
  }

  // Keeps what fits after all, first what takes least memory for what it saves: a block that was written
  // would be written out and read back, so keeping it is worth `written` times as much.
  void use_up(uint64_t written) {
    std::vector<size_t> left;
    for (size_t u = 0; u < stays_.size(); ++u) {
      if (!schedule_.uses[u].keep && schedule_.uses[u].next != Schedule::kNever) left.push_back(u);
    }
    const auto effort = [&](size_t u) {
      return (stays_[u].until - stays_[u].from) * (trace_.uses[u].writes ? 1 : written);
    };
    std::stable_sort(left.begin(), left.end(),
                     [&](size_t a, size_t b) { return effort(a) < effort(b); });
    for (const size_t u : left) {
      if (!fits(stays_[u])) continue;
      schedule_.uses[u].keep = true;
      add(stays_[u]);
    }
  }

  std::vector<Bytes> held() const {
    std::vector<Bytes> all(trace_.events.size());
    for (size_t event = 0; event < all.size(); ++event)
      all[event] = static_cast<Bytes>(held_.at(event));
    return all;
  }

 private:
  struct Stay {
    uint64_t from, until;  // events; counted on into the next step
    Bytes bytes;
  };
  // The events of a stay, within the step: past its end they are those at its begin.
  template <class Visit>
  void each_range(const Stay& stay, Visit visit) const {
    const uint64_t events = trace_.events.size();
    for (uint64_t at = stay.from; at < stay.until;) {
      const uint64_t first = at % events;
      const uint64_t end = std::min(events, first + (stay.until - at));
      visit(first, end);
      at += end - first;
    }
  }
  bool fits(const Stay& stay) const {
    bool fits = true;
    each_range(stay, [&](size_t first, size_t end) {
      fits = fits && held_.greatest(first, end) <= capacity_ - static_cast<int64_t>(stay.bytes);
    });
    return fits;
  }
  void add(const Stay& stay) { change(stay, static_cast<int64_t>(stay.bytes)); }
  void remove(const Stay& stay) { change(stay, -static_cast<int64_t>(stay.bytes)); }
  void change(const Stay& stay, int64_t bytes) {
    each_range(stay, [&](size_t first, size_t end) { held_.add(first, end, bytes); });
  }

  const Trace& trace_;
  Schedule& schedule_;
  const int64_t capacity_;
  RangeMaximum held_;
  std::vector<Stay> stays_;  // like Trace::uses: what keeping costs
};

// What a step moves once it repeats.
void count_traffic(const Trace& trace, Schedule& schedule) {
  struct State {
    bool here = false, dirty = false, stored = false;
  };
  std::vector<State> blocks(trace.block_bytes.size());
  const std::vector<uint32_t> after = successors(trace);
  const std::vector<bool> renewed = renewed_blocks(trace);
  for (int step = 0; step < 3; ++step) {
    schedule.read = schedule.written = 0;
    for (size_t event = 0; event < trace.events.size(); ++event) {
      const size_t first = trace.events[event].first_use;
      for (size_t u = first; u < first + trace.uses_of(event).size(); ++u) {
        const TraceUse& use = trace.uses[u];
        State& state = blocks[use.block];
        if (!state.here && state.stored && use.fetches)
          schedule.read += trace.block_bytes[use.block];
        state.dirty = state.dirty || use.writes;
        state.here = schedule.uses[u].keep;
        if (state.here) continue;
        if (std::exchange(state.dirty, false)) schedule.written += trace.block_bytes[use.block];
        state.stored = true;
      }
      for (const uint32_t storage : trace.deaths_of(event)) {
        const TraceStorage& dead = trace.storages[storage];
        for (uint32_t i = 0; i < dead.blocks; ++i) blocks[dead.first_block + i] = {};
      }
    }
    std::vector<State> next(blocks.size());
    for (size_t block = 0; block < blocks.size(); ++block) {
      if (after[block] != kNone) next[after[block]] = blocks[block];
      if (renewed[block]) next[block].stored = true;
    }
    blocks = std::move(next);
  }
}

// Begins every fetch as early as there is room for it until it is needed, in the order of need. Two
// steps in a row: what the second needs may begin in the first.
void place_fetches(const Trace& trace, Bytes capacity, Schedule& schedule) {
  const size_t events = trace.events.size();
  const std::vector<Bytes>& held = schedule.held;
  std::vector<Bytes> ahead(2 * events, 0);
  struct Last {  // use of a block
    bool kept = true;
    size_t event = 0;
    uint32_t block = 0;  // what it was called then
  };
  std::vector<Last> last(trace.block_bytes.size());
  const std::vector<uint32_t> after = successors(trace);
  const std::vector<bool> renewed = renewed_blocks(trace);
  size_t earliest = 0;
  for (size_t step = 0; step < 2; ++step) {
    for (size_t event = 0; event < events; ++event) {
      const size_t needed = step * events + event;
      const size_t first = trace.events[event].first_use;
      for (size_t u = first; u < first + trace.uses_of(event).size(); ++u) {
        const TraceUse& use = trace.uses[u];
        const Last before =
            std::exchange(last[use.block], {schedule.uses[u].keep, needed, use.block});
        if (before.kept || !use.fetches) continue;
        const Bytes bytes = trace.block_bytes[use.block];
        const size_t least = std::max(earliest, before.event + 1);
        size_t start = needed;
        while (start > least && held[(start - 1) % events] + ahead[start - 1] + bytes <= capacity)
          --start;
        for (size_t at = start; at < needed; ++at) ahead[at] += bytes;
        earliest = std::max(earliest, start);
        if (step == 0) continue;
        const bool in_step_before = start < events;
        schedule.fetches.push_back({in_step_before ? before.block : use.block,
                                    static_cast<uint32_t>(start % events),
                                    in_step_before ? needed : event});
      }
    }
    std::vector<Last> carried(last.size());
    for (size_t block = 0; block < last.size(); ++block) {
      if (after[block] != kNone) carried[after[block]] = last[block];
      // As if it had been used last when the step before ended: its fetch begins in this one.
      if (renewed[block]) carried[block] = {false, events - 1, static_cast<uint32_t>(block)};
    }
    last = std::move(carried);
  }
  std::stable_sort(schedule.fetches.begin(), schedule.fetches.end(),
                   [](const auto& a, const auto& b) { return a.start < b.start; });
}

}  // namespace

namespace {

// Makes a choice of what is kept into a schedule that fits, in the better of two ways.
Schedule fitted(const Trace& trace, Bytes capacity, const std::vector<Schedule::Use>& uses) {
  Schedule best;
  for (const uint64_t written : {1, 2}) {
    Schedule schedule;
    schedule.uses = uses;
    Occupancy occupancy(trace, schedule, capacity);
    occupancy.relieve();
    occupancy.use_up(written);
    schedule.held = occupancy.held();
    count_traffic(trace, schedule);
    if (best.uses.empty() || schedule.moved() < best.moved()) best = std::move(schedule);
  }
  return best;
}

Schedule choose(const Trace& trace, Bytes capacity) {
  Schedule soonest = fitted(trace, capacity, keep_soonest(trace, capacity));
  if (soonest.moved() == 0) return soonest;
  // Belady takes all blocks for equal. Where that is not the best, prices tell.
  const TrafficBound bound = bound_traffic(trace, capacity, soonest.moved(), kRounds);
  soonest.bound = bound.bytes;
  if (static_cast<double>(soonest.moved()) <= kGoodEnough * static_cast<double>(bound.bytes))
    return soonest;
  std::vector<Schedule::Use> priced = soonest.uses;
  for (size_t u = 0; u < priced.size(); ++u) priced[u].keep = bound.keep[u];
  Schedule other = fitted(trace, capacity, priced);
  other.bound = bound.bytes;
  return other.moved() < soonest.moved() ? other : soonest;
}

}  // namespace

Schedule make_schedule(const Trace& trace, Bytes capacity, Bytes ahead) {
  if (trace.events.empty()) return {};
  Schedule schedule = choose(trace, capacity - ahead);
  place_fetches(trace, capacity, schedule);
  return schedule;
}

Bytes Schedule::own_bytes() const {
  return uses.capacity() * sizeof(Use) + fetches.capacity() * sizeof(Fetch) +
         held.capacity() * sizeof(Bytes);
}

}  // namespace bottomless
