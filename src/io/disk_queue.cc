#include "io/disk_queue.h"

#include <algorithm>
#include <cerrno>

#include "base/errno_error.h"

namespace bottomless {
namespace {

constexpr unsigned kMostRetries = 64;  // of EAGAIN and EINTR, for one transfer without progress

std::string describe(const Transfer& transfer, const std::string& target) {
  return std::string(transfer.direction == Direction::read ? "read " : "write ") +
         format_bytes(transfer.memory.size()) + " at offset " + std::to_string(transfer.offset) +
         " of " + target;
}

}  // namespace

Result<std::unique_ptr<DiskQueue>> DiskQueue::start(std::string name,
                                                    std::unique_ptr<Transfers> transfers,
                                                    const Clock& clock) {
  std::unique_ptr<DiskQueue> queue(new DiskQueue(std::move(transfers), clock));
  Result<Thread> thread = Thread::start(std::move(name), [raw = queue.get()] { raw->run(); });
  if (!thread.ok()) return std::move(thread).error();
  queue->thread_ = std::move(thread).value();
  return queue;
}

DiskQueue::DiskQueue(std::unique_ptr<Transfers> transfers, const Clock& clock)
    : transfers_(std::move(transfers)), clock_(clock), slots_(kDepth) {
  for (unsigned i = 0; i < kDepth; ++i) free_slots_.push_back(i);
}

DiskQueue::~DiskQueue() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  transfers_->wake();
}

void DiskQueue::submit(DiskRequest request) {
  bool wake = false;
  {
    MutexLock lock(mutex_);
    wake = inbox_.empty();
    inbox_.push_back(std::move(request));
  }
  if (wake) transfers_->wake();
}

void DiskQueue::raise_priority(uint64_t offset) {
  {
    MutexLock lock(mutex_);
    raised_.push_back(offset);
  }
  transfers_->wake();
}

std::optional<Clock::TimePoint> DiskQueue::waiting_since() const {
  const int64_t oldest = oldest_.load(std::memory_order_relaxed);
  if (oldest == 0) return std::nullopt;
  return Clock::TimePoint(std::chrono::nanoseconds(oldest));
}

void DiskQueue::note_oldest() {
  auto oldest = Clock::TimePoint::max();
  for (const Slot& slot : slots_) {
    if (slot.owner != nullptr) oldest = std::min(oldest, slot.since);
  }
  const bool idle = oldest == Clock::TimePoint::max();
  oldest_.store(idle ? 0 : std::chrono::nanoseconds(oldest.time_since_epoch()).count(),
                std::memory_order_relaxed);
}

void DiskQueue::run() {
  std::vector<Moved> results;
  for (;;) {
    collect();
    start_transfers();
    note_oldest();
    if (free_slots_.size() == kDepth && ended())
      return;  // nothing under way, so nothing is waiting for a slot either
    results.clear();
    transfers_->wait(results);
    for (const Moved& moved : results) handle(moved);
  }
}

// Takes over what has been submitted.
void DiskQueue::collect() {
  std::deque<DiskRequest> arrived;
  std::vector<uint64_t> raised;
  {
    MutexLock lock(mutex_);
    arrived.swap(inbox_);
    raised.swap(raised_);
  }
  for (DiskRequest& request : arrived) {
    auto active = std::make_unique<Active>();
    active->next_offset = request.offset;
    active->request = std::move(request);
    auto& waiting = active->request.priority == Priority::demand ? demanded_ : prefetches_;
    waiting.push_back(std::move(active));
  }
  for (const uint64_t offset : raised) {
    const auto found =
        std::find_if(prefetches_.begin(), prefetches_.end(),
                     [&](const auto& active) { return active->request.offset == offset; });
    if (found == prefetches_.end()) continue;  // all of it has been started
    demanded_.push_back(std::move(*found));
    prefetches_.erase(found);
  }
}

// Asked after what had arrived is finished: a callback may have submitted more.
bool DiskQueue::ended() {
  MutexLock lock(mutex_);
  return stopping_ && inbox_.empty();
}

void DiskQueue::start_transfers() {
  start_transfers_of(demanded_, kDepth);
  start_transfers_of(prefetches_, kDepthAhead);
}

void DiskQueue::start_transfers_of(std::deque<std::unique_ptr<Active>>& waiting, unsigned depth) {
  while (!waiting.empty() && kDepth - free_slots_.size() < depth) {
    Active* active = waiting.front().get();
    if (!active->all_started() && active->outcome.ok()) {
      start_next(*active);
      continue;
    }
    draining_.emplace(active, std::move(waiting.front()));
    waiting.pop_front();
    finish_if_done(active);
  }
}

void DiskQueue::start_next(Active& active) {
  const std::span<std::byte> piece = active.request.pieces[active.next_piece];
  const std::span<std::byte> rest = piece.subspan(active.next_in_piece);
  const std::span<std::byte> memory = rest.first(std::min<size_t>(rest.size(), kTransferBytes));
  const unsigned slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = {.transfer = {.direction = active.request.direction,
                               .fd = active.request.fd,
                               .offset = active.next_offset,
                               .memory = memory,
                               .tag = slot},
                  .owner = &active,
                  .retries = 0,
                  .since = clock_.now()};
  transfers_->start(slots_[slot].transfer);
  ++active.under_way;
  active.next_offset += memory.size();
  active.next_in_piece += memory.size();
  if (active.next_in_piece == piece.size()) {
    ++active.next_piece;
    active.next_in_piece = 0;
  }
}

void DiskQueue::handle(const Moved& moved) {
  Slot& slot = slots_[moved.tag];
  Active* owner = slot.owner;
  Transfer& transfer = slot.transfer;
  const bool again =
      (moved.result == -EAGAIN || moved.result == -EINTR) && ++slot.retries <= kMostRetries;
  if (again && owner->outcome.ok()) {
    transfers_->start(transfer);
    return;
  }
  if (moved.result < 0) {
    if (owner->outcome.ok()) {
      owner->outcome =
          errno_error(static_cast<int>(-moved.result), describe(transfer, owner->request.target));
    }
  } else if (static_cast<Bytes>(moved.result) < transfer.memory.size() && owner->outcome.ok()) {
    // O_DIRECT may only go on at an aligned offset, so a ragged end is transferred once more.
    const Bytes progress = static_cast<Bytes>(moved.result) / kAlignment * kAlignment;
    if (moved.result > 0 && (progress > 0 || ++slot.retries <= kMostRetries)) {
      if (progress > 0) slot.retries = 0;
      transfer.memory = transfer.memory.subspan(progress);
      transfer.offset += progress;
      transfers_->start(transfer);
      return;
    }
    owner->outcome = Error{Code::io, describe(transfer, owner->request.target) + ": only " +
                                         std::to_string(moved.result) +
                                         " bytes could be moved; the file ends early"};
  }
  slot.owner = nullptr;
  free_slots_.push_back(static_cast<unsigned>(moved.tag));
  --owner->under_way;
  note_oldest();  // before anybody hears of it: what has completed is not overdue
  finish_if_done(owner);
}

void DiskQueue::finish_if_done(Active* active) {
  const auto found = draining_.find(active);
  if (found == draining_.end() || active->under_way > 0) return;
  const std::unique_ptr<Active> finished = std::move(found->second);
  draining_.erase(found);
  finished->request.done(std::move(finished->outcome));
}

}  // namespace bottomless
