// Where the engine's blocks lie in the store. Keeps a few places back, so that what is in the store
// can still be exchanged for what is in memory when the store is full; and lets nothing be written
// over that a forked child may yet read.
// Thread-safety: none; the owner locks.
// Lifetime: the store must outlive it.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/unique_fd.h"
#include "io/store.h"

namespace bottomless {

// An extent and how many times the process had been forked when it was taken.
struct Place {
  Extent extent;
  uint32_t forks = 0;

  bool empty() const { return extent.empty(); }
};

class Places {
 public:
  // Keeps back `spares` places of `bytes` each, once the store is used at all.
  Places(Store& store, Bytes bytes, size_t spares);
  ~Places();

  // How many of the spares an allocation must leave when nothing else is free.
  enum class Leave { all, half, none };
  Result<Place> allocate(Bytes bytes, Leave leave);
  void free(const Place& place);
  bool full() const { return full_; }  // when a place was last asked for

  // The process has been forked: until every copy of the other end of `children` is closed, the
  // places taken so far are neither written nor given to others.
  void freeze(UniqueFd children);
  // A place that may not be written to must be freed and another taken.
  bool may_write(const Place& place);

 private:
  bool is_frozen(const Place& place);
  void thaw_if_alone();
  void give_back(const Extent& extent);

  Store& store_;
  const Bytes spare_bytes_;
  const size_t most_spares_;
  std::vector<Extent> spares_;
  bool full_ = false;
  uint32_t forks_ = 0;
  std::vector<UniqueFd> children_;  // each hangs up when the last process that has it has ended
  std::vector<Extent> freed_while_frozen_;
};

}  // namespace bottomless
