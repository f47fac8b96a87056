// The queue of work of one disk: one thread that owns one Transfers, cuts requests into pieces,
// keeps the disk's queue filled, resumes short transfers, and reports each request exactly once:
// done or failed. What somebody waits for overtakes what is done ahead; among equals the first to
// come is the first to go.
// Thread-safety: submit() from any thread.
// Lifetime: the destructor carries out what was submitted, then ends the thread.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "io/priority.h"
#include "io/transfers.h"

namespace bottomless {

// Called on the queue's thread, with no lock of the queue held. It must not block.
using Done = std::function<void(Result<void>)>;

struct DiskRequest {
  Direction direction;
  int fd;
  uint64_t offset;  // of the first piece; the pieces follow each other in the file
  std::vector<std::span<std::byte>> pieces;  // aligned as O_DIRECT asks
  std::string target;                        // what to call the file in an error
  Done done;
  Priority priority = Priority::demand;
};

class DiskQueue {
 public:
  static constexpr unsigned kDepth = 32;
  // Of these, for what is done ahead: it is what somebody who comes now has to wait for.
  static constexpr unsigned kDepthAhead = 8;
  static constexpr Bytes kTransferBytes =
      4_MiB;  // smaller ones cost more processor time than fio's
  static constexpr Bytes kAlignment = 4_KiB;

  static Result<std::unique_ptr<DiskQueue>> start(std::string name,
                                                  std::unique_ptr<Transfers> transfers,
                                                  const Clock& clock = Clock::steady());
  ~DiskQueue();
  DiskQueue(const DiskQueue&) = delete;
  DiskQueue& operator=(const DiskQueue&) = delete;

  void submit(DiskRequest request) BOTTOMLESS_EXCLUDES(mutex_);
  // Somebody waits now for a request that was submitted ahead, named by its offset.
  void raise_priority(uint64_t offset) BOTTOMLESS_EXCLUDES(mutex_);

  // When the oldest transfer under way was started; none: the disk owes nothing.
  std::optional<Clock::TimePoint> waiting_since() const;

 private:
  struct Active {  // a request that has started
    DiskRequest request;
    size_t next_piece = 0;
    Bytes next_in_piece = 0;
    uint64_t next_offset = 0;
    unsigned under_way = 0;
    Result<void> outcome;
    bool all_started() const { return next_piece == request.pieces.size(); }
  };
  struct Slot {  // a transfer under way
    Transfer transfer;
    Active* owner = nullptr;  // none: the slot is free
    unsigned retries = 0;
    Clock::TimePoint since;
  };

  DiskQueue(std::unique_ptr<Transfers> transfers, const Clock& clock);
  void run() BOTTOMLESS_EXCLUDES(mutex_);
  void collect() BOTTOMLESS_EXCLUDES(mutex_);
  bool ended() BOTTOMLESS_EXCLUDES(mutex_);
  void start_transfers();
  void start_transfers_of(std::deque<std::unique_ptr<Active>>& waiting, unsigned depth);
  void note_oldest();
  void start_next(Active& active);
  void handle(const Moved& moved);
  void finish_if_done(Active* active);

  const std::unique_ptr<Transfers> transfers_;
  const Clock& clock_;

  Mutex mutex_;
  std::deque<DiskRequest> inbox_ BOTTOMLESS_GUARDED_BY(mutex_);
  std::vector<uint64_t> raised_ BOTTOMLESS_GUARDED_BY(mutex_);  // offsets
  bool stopping_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  // Nanoseconds of the clock, 0: nothing under way. Relaxed order suffices: it guards nothing.
  std::atomic<int64_t> oldest_{0};

  // Only the queue's own thread touches these.
  std::deque<std::unique_ptr<Active>> demanded_;    // not all pieces started yet
  std::deque<std::unique_ptr<Active>> prefetches_;  // likewise
  std::unordered_map<Active*, std::unique_ptr<Active>>
      draining_;  // all pieces started, some under way
  std::vector<Slot> slots_;
  std::vector<unsigned> free_slots_;

  Thread thread_;  // last: it uses all of the above
};

}  // namespace bottomless
