// A store in RAM that behaves like a bad disk on request: slow, out of order, full, or failing at a chosen operation.
// Transfers complete on a thread of its own, and the bytes are copied only then, so memory that its owner took away too
// early is noticed. It also reports, as test failures, extents that are freed twice or while a transfer uses them.
// Thread-safety: see Store; the controls from any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "io/store.h"

namespace bottomless {

enum class Operation { any, allocate, read, write };

// Fails the n-th (from 0) operation of a kind, or with `from_then_on` every one from there.
struct FailAt {
  uint64_t n = 0;
  Code code = Code::io;
  Operation operation = Operation::any;
  bool from_then_on = false;
};

enum class Order { submission, random };

struct MemoryStoreOptions {
  std::optional<Bytes> capacity;
  Order order = Order::submission;
  unsigned most_delay_us = 0;  // of one transfer in four, at random
  uint64_t seed = 1;
  std::optional<FailAt> fail;
  const Clock* clock = &Clock::steady();  // says what is overdue
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(const MemoryStoreOptions& options = {});
  ~MemoryStore() override;

  Result<Extent> allocate(Bytes bytes) override;
  void free(const Extent& extent) override;
  void read(const Extent& extent, Pieces into, Priority priority, Done done) override;
  void write(const Extent& extent, Pieces from, Priority priority, Done done) override;
  void raise_priority(const Extent& extent) override;
  std::optional<Error> overdue(std::chrono::nanoseconds timeout) override;
  bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept override;

  // While held, nothing completes. Hold, start something, wait until its transfers are here, look, let go.
  void hold();
  void release();
  void wait_for_pending(size_t transfers);
  std::vector<Priority> pending() const;
  void wait_until_idle();  // every transfer so far has completed, and its callback has returned

  void fail(std::optional<FailAt> fail);  // counts from here on
  void set_capacity(std::optional<Bytes> capacity);

  void corrupt();              // flips a bit in the middle of everything that is stored
  void flip(uint64_t offset);  // flips a bit of this byte

  bool fired() const { return failures_.load() > 0; }
  uint64_t failures() const { return failures_.load(); }
  Bytes in_use() const;
  size_t extents() const;

 private:
  struct Place {
    std::vector<std::byte> content;
    unsigned transfers = 0;
    unsigned writes = 0;  // of these
  };
  struct Request {
    Operation operation;
    Extent extent;
    Pieces pieces;
    Priority priority;
    Done done;
    std::optional<Error> failure;
    Clock::TimePoint since;
  };

  std::optional<Error> failure_for(Operation operation);
  void submit(Operation operation, const Extent& extent, Pieces pieces, Priority priority,
              Done done);
  Place* place_around(const Extent& extent);
  size_t next();
  void carry_out(Request& request);
  void run();

  const MemoryStoreOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::map<uint64_t, Place> places_;  // by offset; offsets are never used again
  std::deque<Request> pending_;
  std::optional<FailAt> fail_;
  std::optional<Bytes> capacity_;
  uint64_t next_offset_ = 0;
  uint64_t operations_ = 0;  // that the failure in wait is counting
  Bytes in_use_ = 0;
  bool held_ = false;
  bool busy_ = false;  // a transfer has been taken from pending_
  bool stopping_ = false;
  std::atomic<uint64_t> failures_{0};
  std::thread worker_;  // last: it uses all of the above
};

}  // namespace bottomless
