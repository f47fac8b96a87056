#include "engine/prefetcher.h"

#include <algorithm>
#include <utility>

namespace bottomless {
namespace {

constexpr size_t kMostShapes = 6;
// After so many schedules for shapes that did not come again, only one that does gets a schedule.
constexpr size_t kMostUnusedPlans = 4;
constexpr size_t kTriedAgain =
    16;  // or one in so many, since the old ones may be of no use any more
// A schedule for inputs longer than all of so many since is given up.
constexpr uint32_t kMostSmaller = 16;
constexpr uint32_t kSettled = 3;  // or after so many of one length in a row

Bytes total(const std::vector<Bytes>& sizes) {
  Bytes sum = 0;
  for (const Bytes size : sizes) sum += size;
  return sum;
}

// The same operations on storages of the same origin, whatever their sizes.
bool alike(const Trace& a, const Trace& b) {
  return std::equal(a.storages.begin(), a.storages.end(), b.storages.begin(), b.storages.end(),
                    [](const TraceStorage& x, const TraceStorage& y) {
                      return x.since == y.since &&
                             (x.since != Since::last_step || x.birth == y.birth);
                    });
}

uint64_t sizes_of(const Trace& trace) {
  uint64_t hash = 0;
  for (const Bytes size : trace.block_bytes) hash = mix(hash, size);
  return hash;
}

// Room for what is fetched ahead: an eighth, and for two of the largest blocks if that is not too much.
Bytes room_ahead(const Trace& trace, Bytes capacity) {
  const auto largest = std::max_element(trace.block_bytes.begin(), trace.block_bytes.end());
  const Bytes two = largest == trace.block_bytes.end() ? 0 : 2 * *largest;
  return std::max(capacity / 8, std::min(two, capacity / 4));
}

void take_over_times(Trace& trace, const Trace& newer) {
  for (size_t i = 0; i < trace.events.size(); ++i)
    trace.events[i].seconds = (trace.events[i].seconds + newer.events[i].seconds) / 2;
}

}  // namespace

Prefetcher::Prefetcher(Bytes most_bytes) : most_bytes_(most_bytes) {}

void Prefetcher::note_seen(Storage& storage) {
  if (storage.traced.seen_in == recorder_.step() && storage.traced.index == seen_.size())
    seen_.push_back(&storage);
}

void Prefetcher::bind(uint32_t index, Storage* storage) {
  bound_[index] = storage;
  if (storage == nullptr) return;
  if (storage->planned_in == binding_ && storage->planned != index)
    bound_[storage->planned] = nullptr;
  storage->planned = index;
  storage->planned_in = binding_;
}

void Prefetcher::born(Storage& storage) {
  recorder_.born(storage.traced);
  note_seen(storage);
  if (event_ == kNone) return;
  const auto births = shape_->trace->births_of(event_);
  if (births_ >= births.size()) return;
  const uint32_t index = births[births_++];
  if (shape_->trace->storages[index].blocks == storage.blocks.size()) bind(index, &storage);
}

void Prefetcher::died(Storage& storage) {
  recorder_.died(storage.traced);
  note_seen(storage);
  if (storage.traced.seen_in == recorder_.step()) seen_[storage.traced.index] = nullptr;
  if (storage.planned_in == binding_ && binding_ != 0) bound_[storage.planned] = nullptr;
  if (storage.lasting) lasting_.erase(storage.traced.serial);
  const auto made = made_.find(storage.traced.birth);
  if (made != made_.end() && made->second == &storage) made_.erase(made);
}

bool Prefetcher::is_lasting(const Storage& storage) const {
  const TracedStorage& traced = storage.traced;
  // Without marks: what has been there for half of all operations outlives what a step makes.
  if (!marked_) return traced.born_at * 2 < recorder_.all_events();
  return traced.kind == Kind::parameter || traced.kind == Kind::state ||
         traced.born_in + 2 <= recorder_.step();
}

void Prefetcher::asks(uint64_t signature, double now, Bytes capacity) {
  recorder_.computed(now - ready_at_);
  if (!marked_ && repetition_.next(signature)) finish_step(capacity);
}

void Prefetcher::began(std::string_view who, uint64_t signature) {
  if (recorder_.own_bytes() <= most_bytes_ / 8) {
    recorder_.begin(who, signature);
  } else {
    recorder_.give_up();
  }
  const bool was_departed = follower_.departed();
  event_ = follower_.next(signature);
  births_ = 0;
  if (event_ == kNone && switch_shape()) event_ = static_cast<uint32_t>(follower_.position() - 1);
  if (follower_.departed() && !was_departed) ++departures_;
  if (event_ != kNone) collect_due(event_);
}

// Another shape that began as this step did so far.
bool Prefetcher::switch_shape() {
  const size_t events = recorder_.events();
  if (events == 0) return false;
  for (const auto& shape : shapes_) {
    if (shape.get() == shape_ || shape->capacity == 0) continue;
    if (shape->trace->events.size() < events) continue;
    if (shape->trace->events[events - 1].so_far != recorder_.signature()) continue;
    follow(shape.get(), nullptr);
    follower_.follow(shape->trace.get(), events);
    for (size_t i = 0; i < seen_.size() && i < bound_.size(); ++i) {
      if (seen_[i] != nullptr && seen_[i]->blocks.size() == shape->trace->storages[i].blocks)
        bind(static_cast<uint32_t>(i), seen_[i]);
    }
    return true;
  }
  return false;
}

void Prefetcher::collect_due(size_t event) {
  const auto& fetches = shape_->schedule.fetches;
  for (; next_fetch_ < fetches.size() && fetches[next_fetch_].start <= event; ++next_fetch_) {
    if (fetches[next_fetch_].needed >= event)
      due_.push_back({fetches[next_fetch_].block, fetches[next_fetch_].needed});
  }
  while (!due_.empty() && due_.front().needed <= event) due_.pop_front();
}

Block* Prefetcher::block_of(uint32_t block) const {
  const uint32_t index = shape_->trace->storage_of_block[block];
  Storage* storage = bound_[index];
  return storage == nullptr ? nullptr
                            : &storage->blocks[block - shape_->trace->storages[index].first_block];
}

Block* Prefetcher::due() {
  while (!due_.empty()) {
    Block* block = block_of(due_.front().block);
    if (block != nullptr && block->next_use <= position())
      block->next_use = base_ + due_.front().needed;
    if (block != nullptr && (block->state == State::absent || block->state == State::writing))
      return block;
    due_.pop_front();
  }
  return nullptr;
}

void Prefetcher::uses(Block& block, TraceUse how) {
  Storage& storage = *block.storage;
  const auto number = static_cast<uint32_t>(&block - storage.blocks.data());
  recorder_.use(storage.traced, number, how);
  note_seen(storage);
  block.next_use = EvictionCandidate::kUnknown;
  block.evict_when_unpinned = false;
  if (event_ == kNone || storage.planned_in != binding_) return;
  const uint32_t id = shape_->trace->storages[storage.planned].first_block + number;
  const auto uses = shape_->trace->uses_of(event_);
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].block != id) continue;
    const Schedule::Use& planned =
        shape_->schedule.uses[shape_->trace->events[event_].first_use + i];
    block.evict_when_unpinned = !planned.keep;
    block.next_use =
        planned.next == Schedule::kNever ? EvictionCandidate::kNever : base_ + planned.next;
    return;
  }
}

void Prefetcher::ready(double now) { ready_at_ = now; }

void Prefetcher::end_step(double now, Bytes capacity) {
  marked_ = true;
  recorder_.computed(now - ready_at_);
  finish_step(capacity);
}

void Prefetcher::finish_step(Bytes capacity) {
  base_ += follower_.trace() != nullptr ? follower_.trace()->events.size() : 1;
  if (recorder_.full()) ++too_long_;
  Trace trace = recorder_.end_step();
  made_.clear();
  for (Storage* storage : seen_) {
    if (storage == nullptr) continue;
    if (storage->traced.born_in + 1 == recorder_.step())
      made_.emplace(storage->traced.birth, storage);
    if (storage->lasting) continue;
    storage->lasting = true;
    lasting_.emplace(storage->traced.serial, storage);
  }
  seen_.clear();
  Shape* now = trace.events.empty() ? nullptr : remember(std::move(trace), capacity);
  if (last_ != nullptr && now != nullptr) last_->followed_by = now;
  last_ = now;
  // With a schedule on its way nothing is begun that it may not want.
  follow(now != nullptr && now->wanted != 0 ? nullptr : likely_next(), now);
}

Prefetcher::Shape* Prefetcher::likely_next() const {
  Shape* next = last_;
  if (last_ != nullptr && last_->followed_by != nullptr) next = last_->followed_by;
  return next == nullptr || next->capacity == 0 ? newest_with_schedule() : next;
}

// Whether the shape's schedule will do for another step like this one. With inputs of any length, one for the
// longest of them serves all; one for each would never be used.
bool Prefetcher::serves(Shape& shape, const Trace& trace) {
  const uint64_t sizes = sizes_of(trace);
  shape.same_sizes = std::exchange(shape.sizes, sizes) == sizes ? shape.same_sizes + 1 : 1;
  if (!alike(*shape.trace, trace)) return false;
  const Bytes planned = total(shape.trace->block_bytes);
  const Bytes seen = total(trace.block_bytes);
  if (seen == planned) shape.smaller = 0;
  if (seen >= planned) return seen == planned && shape.trace->uses.size() == trace.uses.size();
  return shape.same_sizes < kSettled && ++shape.smaller < kMostSmaller;
}

Prefetcher::Shape* Prefetcher::remember(Trace trace, Bytes capacity) {
  Shape* known = nullptr;
  for (const auto& shape : shapes_) {
    if (shape->trace->signature() == trace.signature()) known = shape.get();
  }
  const bool is_new = known == nullptr;
  if (is_new) known = shapes_.emplace_back(std::make_unique<Shape>()).get();
  known->last_seen = recorder_.step();
  const bool same = !is_new && serves(*known, trace);
  if (is_new) known->sizes = sizes_of(trace);
  const Bytes planned = known->wanted != 0 ? known->wanted_capacity : known->capacity;
  const Bytes difference = capacity > planned ? capacity - planned : planned - capacity;
  if (same) {
    if (known->wanted != 0)  // somebody may be reading it
      known->trace = std::make_shared<Trace>(*known->trace);
    take_over_times(*known->trace, trace);
    // Serials of what was not there yet when it was recorded.
    for (size_t i = 0; i < trace.storages.size(); ++i)
      known->trace->storages[i].serial = trace.storages[i].serial;
  } else {
    known->trace = std::make_shared<Trace>(std::move(trace));
    known->smaller = 0;
    known->capacity = 0;
    known->wanted = 0;
  }
  if (!is_new) unused_plans_ = 0;
  if (is_new && ++unused_plans_ > kMostUnusedPlans && unused_plans_ % kTriedAgain != 0 &&
      newest_with_schedule() != nullptr) {
    known->capacity = 0;
  } else if (!same || difference > capacity / 32) {
    want_schedule(*known, capacity);
  }
  if (known->wanted == 0) forget_too_many(known);  // with its schedule, it is known how many
  if (newest_with_schedule() == nullptr && known->wanted == 0) want_schedule(*known, capacity);
  return known;
}

void Prefetcher::forget_too_many(const Shape* but) {
  count_bytes();
  while (shapes_.size() > kMostShapes || (shapes_.size() > 1 && shape_bytes_ > most_bytes_ / 2))
    forget_oldest_but(but);
}

Prefetcher::Shape* Prefetcher::newest_with_schedule() const {
  Shape* newest = nullptr;
  for (const auto& shape : shapes_) {
    if (shape->capacity > 0 && (newest == nullptr || shape->last_seen > newest->last_seen))
      newest = shape.get();
  }
  return newest;
}

void Prefetcher::forget_oldest_but(const Shape* shape) {
  const Shape* newest = newest_with_schedule();
  const auto rank = [&](const Shape& each) {
    return std::pair(&each == shape || &each == newest, each.last_seen);
  };
  const auto oldest = std::min_element(shapes_.begin(), shapes_.end(),
                                       [&](auto& a, auto& b) { return rank(*a) < rank(*b); });
  for (const auto& each : shapes_) {
    if (each->followed_by == oldest->get()) each->followed_by = nullptr;
  }
  if (last_ == oldest->get()) last_ = nullptr;
  if (shape_ == oldest->get()) follow(nullptr, nullptr);
  shapes_.erase(oldest);
  count_bytes();
}

void Prefetcher::count_bytes() {
  shape_bytes_ = 0;
  for (const auto& each : shapes_) {
    shape_bytes_ += each->trace->own_bytes() + each->schedule.own_bytes() +
                    each->after.capacity() * sizeof(uint32_t);
  }
}

void Prefetcher::want_schedule(Shape& shape, Bytes capacity) {
  shape.wanted = ++wants_;
  shape.wanted_capacity = capacity;
}

std::optional<Prefetcher::Wanted> Prefetcher::wanted() const {
  const Shape* newest = nullptr;
  for (const auto& shape : shapes_) {
    if (shape->wanted != 0 && (newest == nullptr || shape->wanted > newest->wanted))
      newest = shape.get();
  }
  if (newest == nullptr) return std::nullopt;
  return Wanted{newest->wanted, newest->wanted_capacity, newest->trace};
}

Prefetcher::Made Prefetcher::make(const Wanted& wanted) {
  const Trace& trace = *wanted.trace;
  return {make_schedule(trace, wanted.capacity, room_ahead(trace, wanted.capacity)),
          successors(trace)};
}

void Prefetcher::adopt(const Wanted& wanted, Made made) {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(),
                                  [&](const auto& shape) { return shape->wanted == wanted.id; });
  if (found == shapes_.end()) return;
  Shape& shape = **found;
  ++schedules_made_;
  shape.wanted = 0;
  shape.capacity = wanted.capacity;
  shape.schedule = std::move(made.schedule);
  shape.after = std::move(made.after);
  forget_too_many(&shape);
  // Once an operation has begun, the next one finds the shape by what came before it.
  const bool at_begin = recorder_.events() == 0 && !recorder_.full();
  if (at_begin && last_ != nullptr && last_->wanted == 0) follow(likely_next(), last_);
}

void Prefetcher::follow(Shape* shape, const Shape* before) {
  shape_ = shape;
  event_ = kNone;
  next_fetch_ = 0;
  due_.clear();
  bound_.clear();
  ++binding_;
  follower_.follow(shape == nullptr ? nullptr : shape->trace.get());
  if (shape == nullptr) return;
  const Trace& trace = *shape->trace;
  bound_.assign(trace.storages.size(), nullptr);
  for (uint32_t i = 0; i < trace.storages.size(); ++i) {
    const TraceStorage& wanted = trace.storages[i];
    if (wanted.since == Since::this_step) continue;
    const bool carried = wanted.since == Since::last_step;
    if (carried && before != shape) continue;
    const auto& known = carried ? made_ : lasting_;
    const auto found = known.find(carried ? wanted.birth : wanted.serial);
    if (found != known.end() && found->second->blocks.size() == wanted.blocks)
      bind(i, found->second);
  }
  // What a step before of the same shape would have begun to fetch; one of another shape has not.
  for (const Schedule::Fetch& fetch : shape->schedule.fetches) {
    if (fetch.needed >= trace.events.size() && shape->after[fetch.block] != kNone)
      due_.push_back({shape->after[fetch.block], fetch.needed - trace.events.size()});
  }
  if (!trace.events.empty())
    collect_due(0);  // what may begin with the step need not wait for its first operation
}

StepRecord Prefetcher::last_step() const {
  if (last_ == nullptr || last_->capacity == 0) return {};
  if (sizes_of(*last_->trace) != last_->sizes) return {};  // that of a step with longer inputs
  StepRecord record;
  record.trace = *last_->trace;
  record.schedule = last_->schedule;
  record.capacity = last_->capacity;
  record.ahead = room_ahead(*last_->trace, last_->capacity);
  return record;
}

}  // namespace bottomless
