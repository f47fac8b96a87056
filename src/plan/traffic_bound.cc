#include "plan/traffic_bound.h"

#include <algorithm>
#include <array>
#include <limits>

#include "plan/schedule.h"

namespace bottomless {
namespace {

constexpr double kNoWay = std::numeric_limits<double>::infinity();

struct Use {
  uint64_t event;  // counted on into the next step
  uint32_t index;  // in Trace::uses
  bool writes;
  bool fetches;
};

// All uses of one block, from its making to its end, or round a step if it has neither.
struct Life {
  Bytes bytes;
  std::vector<Use> uses;
  bool round = false;  // after the last comes the first, in the next step
  uint64_t ends = 0;   // the event at which it is freed; 0: it is never
};

std::vector<Life> lives_of(const Trace& trace) {
  const uint64_t events = trace.events.size();
  std::vector<std::vector<Use>> uses(trace.block_bytes.size());
  std::vector<uint64_t> ends(trace.block_bytes.size(), 0);
  for (size_t event = 0; event < events; ++event) {
    for (size_t i = 0; i < trace.uses_of(event).size(); ++i) {
      const TraceUse& use = trace.uses_of(event)[i];
      const auto index = static_cast<uint32_t>(trace.events[event].first_use + i);
      uses[use.block].push_back({event, index, use.writes, use.fetches});
    }
    for (const uint32_t storage : trace.deaths_of(event)) {
      const TraceStorage& dead = trace.storages[storage];
      for (uint32_t i = 0; i < dead.blocks; ++i) ends[dead.first_block + i] = event;
    }
  }
  const std::vector<uint32_t> after = successors(trace);
  std::vector<Life> lives;
  for (uint32_t block = 0; block < trace.block_bytes.size(); ++block) {
    const TraceStorage& storage = trace.storages[trace.storage_of_block[block]];
    // Those made in the step before are seen where they were made.
    if (storage.since == Since::last_step || uses[block].empty()) continue;
    Life life{.bytes = trace.block_bytes[block], .uses = uses[block], .ends = ends[block]};
    const uint32_t next = after[block];
    if (next == block) {
      life.round = true;
    } else if (next != kNone) {
      for (Use use : uses[next]) {
        use.event += events;
        life.uses.push_back(use);
      }
      life.ends = ends[next] == 0 ? 0 : ends[next] + events;
    }
    lives.push_back(std::move(life));
  }
  return lives;
}

class Prices {
 public:
  Prices(const Trace& trace, Bytes capacity)
      : events_(trace.events.size()),
        lives_(lives_of(trace)),
        room_(events_, static_cast<double>(capacity)),
        price_(events_, 0),
        worth_(2 * events_ + 1, 0) {
    for (size_t event = 0; event < events_; ++event) {
      for (const TraceUse& use : trace.uses_of(event))
        room_[event] -= static_cast<double>(trace.block_bytes[use.block]);
      // What does not fit at all is no reason to move more.
      room_[event] = std::max(room_[event], 0.0);
    }
    best_.keep.assign(trace.uses.size(), true);
  }

  TrafficBound run(double reached, int rounds) {
    double best = 0;
    double scale = 1.5;
    int since_better = 0;
    std::vector<bool> keep(best_.keep.size());
    for (int round = 0; round < rounds; ++round) {
      const double bound = evaluate(keep);
      if (bound > best) {
        best = bound;
        best_.keep = keep;
        since_better = 0;
      } else if (++since_better > 8) {
        scale /= 2;
        since_better = 0;
      }
      if (reached <= best) break;
      if (!change_prices(scale * (reached - bound))) break;
    }
    best_.bytes = static_cast<Bytes>(std::max(0.0, best - 0.5));
    return best_;
  }

 private:
  // What all blocks cost at these prices, less what the room is worth.
  double evaluate(std::vector<bool>& keep) {
    for (size_t i = 0; i < 2 * events_; ++i) worth_[i + 1] = worth_[i] + price_[i % events_];
    used_.assign(2 * events_ + 1, 0);
    double total = 0;
    for (const Life& life : lives_) total += cheapest(life, keep);
    for (size_t event = 0; event < events_; ++event) total -= price_[event] * room_[event];
    return total;
  }

  enum State : uint8_t { clean, dirty };

  // The cheapest way through a block's life; marks what it keeps.
  double cheapest(const Life& life, std::vector<bool>& keep) {
    double least = kNoWay;
    State start = dirty;
    for (const State first : {dirty, clean}) {
      if (first == clean && life.uses.front().writes) continue;
      if (const double cost = walk(life, first); cost < least) {
        least = cost;
        start = first;
      }
    }
    walk(life, start);
    State state = end_state_;
    for (size_t i = choices_.size(); i-- > 0;) {
      const Choice& choice = choices_[i][state];
      keep[life.uses[i].index] = choice.kept;
      if (choice.kept) occupy(life, i);
      state = choice.from;
    }
    return least;
  }

  struct Choice {
    bool kept = false;
    State from = dirty;
  };

  uint64_t until(const Life& life, size_t i) const {
    if (i + 1 < life.uses.size()) return life.uses[i + 1].event;
    if (life.round) return life.uses.front().event + events_;
    return life.ends == 0 ? life.uses[i].event + 1 : life.ends + 1;
  }

  double walk(const Life& life, State first) {
    const auto bytes = static_cast<double>(life.bytes);
    std::array<double, 2> cost{kNoWay, kNoWay};
    cost[first] = 0;
    choices_.assign(life.uses.size(), {});
    for (size_t i = 0; i < life.uses.size(); ++i) {
      const bool last = i + 1 == life.uses.size();
      const Use* next = !last ? &life.uses[i + 1] : life.round ? &life.uses.front() : nullptr;
      const double stay = bytes * (worth_[until(life, i)] - worth_[life.uses[i].event + 1]);
      const double again = next != nullptr && next->fetches ? bytes : 0;
      std::array<double, 2> then{kNoWay, kNoWay};
      for (const State state : {clean, dirty}) {
        if (cost[state] == kNoWay) continue;
        const auto go = [&](State to, double price, bool kept) {
          if (next != nullptr && next->writes) to = dirty;
          if (cost[state] + price >= then[to]) return;
          then[to] = cost[state] + price;
          choices_[i][to] = {kept, state};
        };
        go(state, stay, true);
        go(clean, again + (state == dirty ? bytes : 0), false);
      }
      cost = then;
    }
    if (life.round) {
      end_state_ = first;
      return cost[first];
    }
    end_state_ = cost[clean] < cost[dirty] ? clean : dirty;
    return cost[end_state_];
  }

  void occupy(const Life& life, size_t i) {
    used_[life.uses[i].event + 1] += static_cast<double>(life.bytes);
    used_[until(life, i)] -= static_cast<double>(life.bytes);
  }

  // Dearer where more is kept than there is room for, cheaper where there is room left.
  bool change_prices(double gap) {
    std::vector<double> over(events_, 0);
    double now = 0;
    for (size_t i = 0; i < 2 * events_; ++i) {
      now += used_[i];
      over[i % events_] += now;
    }
    double square = 0;
    for (size_t event = 0; event < events_; ++event) {
      over[event] -= room_[event];
      if (over[event] < 0 && price_[event] == 0) over[event] = 0;
      square += over[event] * over[event];
    }
    if (square == 0) return false;
    for (size_t event = 0; event < events_; ++event)
      price_[event] = std::max(0.0, price_[event] + gap / square * over[event]);
    return true;
  }

  const size_t events_;
  const std::vector<Life> lives_;
  std::vector<double> room_;   // besides what the event itself uses
  std::vector<double> price_;  // of a byte during an event
  std::vector<double> worth_;  // sums of prices
  std::vector<double> used_;   // of the room, as differences
  std::vector<std::array<Choice, 2>> choices_;
  State end_state_ = dirty;
  TrafficBound best_;
};

}  // namespace

TrafficBound bound_traffic(const Trace& trace, Bytes capacity, Bytes reached, int rounds) {
  if (trace.events.empty()) return {};
  return Prices(trace, capacity).run(static_cast<double>(reached), rounds);
}

}  // namespace bottomless
