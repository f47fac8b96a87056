#include "support/memory_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <utility>

namespace bottomless {

MemoryStore::MemoryStore(const MemoryStoreOptions& options)
    : options_(options), random_(options.seed), fail_(options.fail), capacity_(options.capacity) {
  worker_ = std::thread([this] { run(); });
}

MemoryStore::~MemoryStore() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    held_ = false;
  }
  changed_.notify_all();
  worker_.join();
}

// With the lock held.
std::optional<Error> MemoryStore::failure_for(Operation operation) {
  if (!fail_ || (fail_->operation != Operation::any && fail_->operation != operation))
    return std::nullopt;
  const uint64_t index = operations_++;
  if (index != fail_->n && !(fail_->from_then_on && index > fail_->n)) return std::nullopt;
  failures_.fetch_add(1);
  return Error{fail_->code, "injected failure of store operation " + std::to_string(index)};
}

Result<Extent> MemoryStore::allocate(Bytes bytes) {
  std::lock_guard lock(mutex_);
  if (auto failure = failure_for(Operation::allocate)) return std::move(*failure);
  const Bytes rounded = round_to_store(bytes);
  if (capacity_ && in_use_ + rounded > *capacity_) {
    return Error{Code::no_space, "store " + format_bytes(rounded) + ": " + format_bytes(in_use_) +
                                     " in use of " + format_bytes(*capacity_)};
  }
  in_use_ += rounded;
  const Extent extent{.disk = 0, .offset = next_offset_, .bytes = rounded};
  next_offset_ += rounded;
  // What nobody wrote is not zero: a read before the first write shows.
  places_[extent.offset].content.assign(rounded, std::byte{0xA5});
  return extent;
}

void MemoryStore::free(const Extent& extent) {
  std::lock_guard lock(mutex_);
  const auto place = places_.find(extent.offset);
  if (place == places_.end() || place->second.content.size() != extent.bytes) {
    ADD_FAILURE() << "an extent was freed that does not exist: offset " << extent.offset;
    return;
  }
  if (place->second.transfers > 0)
    ADD_FAILURE() << "an extent was freed under a transfer: offset " << extent.offset;
  in_use_ -= extent.bytes;
  places_.erase(place);
}

void MemoryStore::read(const Extent& extent, Pieces into, Priority priority, Done done) {
  submit(Operation::read, extent, std::move(into), priority, std::move(done));
}

void MemoryStore::write(const Extent& extent, Pieces from, Priority priority, Done done) {
  submit(Operation::write, extent, std::move(from), priority, std::move(done));
}

void MemoryStore::raise_priority(const Extent& extent) {
  std::lock_guard lock(mutex_);
  for (Request& request : pending_) {
    if (request.extent.offset == extent.offset) request.priority = Priority::demand;
  }
}

std::optional<Error> MemoryStore::overdue(std::chrono::nanoseconds timeout) {
  std::lock_guard lock(mutex_);
  for (const Request& request : pending_) {
    if (options_.clock->now() - request.since >= timeout)
      return Error{Code::io, "wait for the memory store: it has not answered for too long"};
  }
  return std::nullopt;
}

bool MemoryStore::read_in_child(const Extent& extent, std::span<std::byte> into) noexcept {
  const auto place = places_.find(extent.offset);
  if (place == places_.end() || place->second.content.size() < into.size()) return false;
  std::memcpy(into.data(), place->second.content.data(), into.size());
  return true;
}

// Of an extent or a part of it.
MemoryStore::Place* MemoryStore::place_around(const Extent& extent) {
  auto after = places_.upper_bound(extent.offset);
  if (after == places_.begin()) return nullptr;
  auto& [offset, place] = *--after;
  return extent.offset + extent.bytes <= offset + place.content.size() ? &place : nullptr;
}

void MemoryStore::submit(Operation operation, const Extent& extent, Pieces pieces,
                         Priority priority, Done done) {
  Bytes total = 0;
  for (const auto piece : pieces) total += piece.size();
  std::lock_guard lock(mutex_);
  Place* const place = place_around(extent);
  if (place == nullptr || total > extent.bytes) {
    ADD_FAILURE() << "a transfer outside an extent: " << total << " bytes at offset "
                  << extent.offset;
    return;
  }
  // Two at once on one extent, one of them a write: the outcome would depend on chance.
  const bool writes = operation == Operation::write;
  if (place->writes > 0 || (writes && place->transfers > 0))
    ADD_FAILURE() << "a second transfer on one extent: offset " << extent.offset;
  ++place->transfers;
  place->writes += writes;
  pending_.push_back({operation, extent, std::move(pieces), priority, std::move(done),
                      failure_for(operation), options_.clock->now()});
  changed_.notify_all();
}

void MemoryStore::carry_out(Request& request) {
  if (request.failure) return;
  std::byte* content = nullptr;
  {
    std::lock_guard lock(mutex_);
    const uint64_t begin = std::prev(places_.upper_bound(request.extent.offset))->first;
    content = place_around(request.extent)->content.data() + (request.extent.offset - begin);
  }
  for (const auto piece : request.pieces) {
    if (request.operation == Operation::read) {
      std::memcpy(piece.data(), content, piece.size());
    } else {
      std::memcpy(content, piece.data(), piece.size());
    }
    content += piece.size();
  }
}

// With the lock held: the request to carry out next.
size_t MemoryStore::next() {
  if (options_.order == Order::random) return random_() % pending_.size();
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (pending_[i].priority == Priority::demand) return i;
  }
  return 0;
}

void MemoryStore::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (!held_ && !pending_.empty()); });
    if (pending_.empty()) return;
    const size_t index = next();
    const bool delayed = options_.most_delay_us > 0 && random_() % 4 == 0;
    const auto delay = std::chrono::microseconds(delayed ? random_() % options_.most_delay_us : 0);
    Request request = std::move(pending_[index]);
    pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
    busy_ = true;
    lock.unlock();
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    carry_out(request);
    lock.lock();
    Place& place = *place_around(request.extent);
    --place.transfers;
    place.writes -= request.operation == Operation::write;
    lock.unlock();
    Result<void> outcome;
    if (request.failure) outcome = std::move(*request.failure);
    request.done(std::move(outcome));
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void MemoryStore::hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
}

void MemoryStore::release() {
  {
    std::lock_guard lock(mutex_);
    held_ = false;
  }
  changed_.notify_all();
}

void MemoryStore::wait_for_pending(size_t transfers) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.size() >= transfers; });
}

std::vector<Priority> MemoryStore::pending() const {
  std::lock_guard lock(mutex_);
  std::vector<Priority> urgencies;
  for (const Request& request : pending_) urgencies.push_back(request.priority);
  return urgencies;
}

void MemoryStore::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.empty() && !busy_; });
}

void MemoryStore::fail(std::optional<FailAt> fail) {
  std::lock_guard lock(mutex_);
  fail_ = fail;
  operations_ = 0;
  failures_ = 0;
}

void MemoryStore::set_capacity(std::optional<Bytes> capacity) {
  std::lock_guard lock(mutex_);
  capacity_ = capacity;
}

void MemoryStore::corrupt() {
  std::lock_guard lock(mutex_);
  for (auto& [offset, place] : places_) {
    if (!place.content.empty()) place.content[place.content.size() / 2] ^= std::byte{0x10};
  }
}

void MemoryStore::flip(uint64_t offset) {
  std::lock_guard lock(mutex_);
  Place* const place = place_around({.offset = offset, .bytes = 1});
  if (place == nullptr) {
    ADD_FAILURE() << "nothing is stored at offset " << offset;
    return;
  }
  place->content[offset - std::prev(places_.upper_bound(offset))->first] ^= std::byte{1};
}

Bytes MemoryStore::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}

size_t MemoryStore::extents() const {
  std::lock_guard lock(mutex_);
  return places_.size();
}

}  // namespace bottomless
