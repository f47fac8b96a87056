#include "plan/trace.h"

#include <algorithm>

namespace bottomless {
namespace {

// What lies in `all` between the begins that two neighbouring events have there.
template <class T>
std::span<const T> between(const std::vector<T>& all, const std::vector<TraceEvent>& events,
                           size_t event, uint32_t TraceEvent::*first) {
  const size_t from = events[event].*first;
  const size_t to = event + 1 < events.size() ? events[event + 1].*first : all.size();
  return {all.data() + from, to - from};
}

template <class T>
Bytes held(const std::vector<T>& all) {
  return all.capacity() * sizeof(T);
}

}  // namespace

std::span<const TraceUse> Trace::uses_of(size_t event) const {
  return between(uses, events, event, &TraceEvent::first_use);
}

std::span<const uint32_t> Trace::births_of(size_t event) const {
  return between(births, events, event, &TraceEvent::first_birth);
}

std::span<const uint32_t> Trace::deaths_of(size_t event) const {
  return between(deaths, events, event, &TraceEvent::first_death);
}

double Trace::seconds() const {
  double total = 0;
  for (const TraceEvent& event : events) total += event.seconds;
  return total;
}

Bytes Trace::most_at_once() const {
  Bytes most = 0;
  for (size_t event = 0; event < events.size(); ++event) {
    Bytes together = 0;
    for (const TraceUse& use : uses_of(event)) together += block_bytes[use.block];
    most = std::max(most, together);
  }
  return most;
}

Bytes Trace::own_bytes() const {
  return held(events) + held(uses) + held(births) + held(deaths) + held(storages) +
         held(block_bytes) + held(storage_of_block);
}

}  // namespace bottomless
