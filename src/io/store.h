// Where blocks live while they are not in memory. The narrow interface between the engine and
// any tier below it: the engine neither knows nor cares what a store is made of.
// Thread-safety: every call from any thread. `Done` callbacks run on a thread of the store and
// may call the store.
// Lifetime: a store finishes every transfer, and has called every callback, before its
// destructor returns.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "io/priority.h"

namespace bottomless {

// A place in a store; move it about as a value, give it back with Store::free.
struct Extent {
  uint32_t disk = 0;
  uint64_t offset = 0;
  Bytes bytes = 0;  // 0: none

  bool empty() const { return bytes == 0; }
};

using Pieces = std::vector<std::span<std::byte>>;  // memory in the order of the extent, each piece
                                                   // page-aligned

class Store {
 public:
  using Done = std::function<void(Result<void>)>;
  static constexpr Bytes kAlignment = 4_KiB;  // of extents, and of the memory that is transferred

  virtual ~Store() = default;

  // Room for `bytes`, rounded up to the alignment. Fails with Code::no_space when the disk or its
  // limit is full.
  virtual Result<Extent> allocate(Bytes bytes) = 0;
  virtual void free(const Extent& extent) = 0;

  // Fill the memory from the extent, or the extent from the memory. The memory must stay until
  // `done` has been called; a transfer that fails or comes short says so, it is never called done.
  virtual void read(const Extent& extent, Pieces into, Priority priority, Done done) = 0;
  virtual void write(const Extent& extent, Pieces from, Priority priority, Done done) = 0;
  // Somebody waits now for the transfer that was begun ahead, if it is still under way.
  virtual void raise_priority(const Extent& extent) = 0;

  // An error that names the disk which has not answered for so long, if there is one. Its transfers
  // are still under way: a disk may come back.
  virtual std::optional<Error> overdue(std::chrono::nanoseconds timeout) = 0;

  // Reads on the calling thread, without locks or memory: for a forked child, which has none of the
  // store's threads. May be called by a signal handler.
  virtual bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept = 0;
};

constexpr Bytes round_to_store(Bytes bytes) {
  return (bytes + Store::kAlignment - 1) / Store::kAlignment * Store::kAlignment;
}

}  // namespace bottomless
