// Where a storage's content comes from when none of it lies in the store of this process: other processes have it, each
// a part. The engine asks for a block's worth at a time and puts it under the block when all of it is there.
// Thread-safety: the engine calls with its lock held: an implementation neither waits nor calls the engine, and calls
// `Done` later, from a thread of its own.
// Lifetime: a storage keeps its source; every fetch is answered before the engine ends.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include "io/priority.h"
#include "io/store.h"

namespace bottomless {

class Source {
 public:
  using Done = Store::Done;

  Source() = default;
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Fills `into` with the `bytes` from `offset` of the storage on. The memory stays until `done` has been called, exactly
  // once.
  virtual void fetch(Bytes offset, Bytes bytes, Pieces into, Priority priority, Done done) = 0;
  // Somebody waits now for the fetch at `offset` that was begun ahead.
  virtual void raise_priority(Bytes offset) = 0;
};

}  // namespace bottomless
