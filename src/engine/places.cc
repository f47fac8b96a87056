#include "engine/places.h"

#include <poll.h>

#include <utility>

namespace bottomless {

Places::Places(Store& store, Bytes bytes, size_t spares)
    : store_(store), spare_bytes_(round_to_store(bytes)), most_spares_(spares) {}

Places::~Places() {
  for (const auto* extents : {&spares_, &freed_while_frozen_}) {
    for (const Extent& extent : *extents) store_.free(extent);
  }
}

Result<Place> Places::allocate(Bytes bytes, Leave leave) {
  thaw_if_alone();
  while (!full_ && spares_.size() < most_spares_) {
    Result<Extent> spare = store_.allocate(spare_bytes_);
    if (!spare.ok()) break;
    spares_.push_back(spare.value());
  }
  Result<Extent> extent = store_.allocate(bytes);
  full_ = !extent.ok() && extent.error().code == Code::no_space;
  if (extent.ok()) return Place{extent.value(), forks_};
  const size_t kept = leave == Leave::all    ? most_spares_
                      : leave == Leave::half ? most_spares_ / 2
                                             : 0;
  if (!full_ || spares_.size() <= kept || bytes > spare_bytes_) return std::move(extent).error();
  const Extent spare = spares_.back();
  spares_.pop_back();
  return Place{spare, forks_};
}

void Places::free(const Place& place) {
  if (is_frozen(place)) {
    freed_while_frozen_.push_back(place.extent);
  } else {
    give_back(place.extent);
  }
}

void Places::give_back(const Extent& extent) {
  // First of all the spares: they were lent in an emergency.
  if (full_ && spares_.size() < most_spares_ && extent.bytes == spare_bytes_) {
    spares_.push_back(extent);
  } else {
    store_.free(extent);
  }
}

void Places::freeze(UniqueFd children) {
  thaw_if_alone();  // a program may fork thousands of times and never evict anything
  children_.push_back(std::move(children));
  ++forks_;
}

bool Places::may_write(const Place& place) { return !is_frozen(place); }

bool Places::is_frozen(const Place& place) {
  if (children_.empty() || place.forks == forks_) return false;
  thaw_if_alone();
  return !children_.empty();
}

void Places::thaw_if_alone() {
  if (children_.empty()) return;
  std::erase_if(children_, [](const UniqueFd& end) {
    pollfd hung_up{end.get(), 0, 0};
    return poll(&hung_up, 1, 0) > 0;
  });
  if (!children_.empty()) return;
  for (const Extent& extent : std::exchange(freed_while_frozen_, {})) give_back(extent);
}

}  // namespace bottomless
