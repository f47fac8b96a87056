// The engine's records. A storage is one allocation at one address for its whole life; its
// blocks, cut at a fixed size, are what becomes resident and leaves, each by itself.
// Thread-safety: guarded by the engine's lock.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/places.h"
#include "memory/access.h"
#include "memory/kind.h"
#include "plan/eviction_policy.h"

namespace bottomless {

struct Storage;

// resident --evict--> writing --written--> away --pin--> fetching --read--> resident
// A clean block skips writing; a block pinned while it is being written stays resident; a block
// that was never written to has no content to fetch and becomes resident at once.
enum class State : uint8_t { resident, writing, away, fetching };

struct Block : EvictionCandidate {
  Storage* storage = nullptr;
  std::byte* at = nullptr;
  Bytes bytes = 0;
  Place place;  // where its content lies below; kept when the memory is newer, to be written again
  std::unique_ptr<Error> failure;  // of the last fetch
  uint32_t pins = 0;
  State state = State::away;
  Access access = Access::none;  // how it is mapped; a clean block is never writable
  bool dirty = false;            // the memory is newer than the place
  // Whoever pins it will write all of it, so its content was not fetched; unless that is done, the
  // content is what lies below.
  bool unfilled = false;
};

struct Storage {
  std::byte* at = nullptr;
  Bytes bytes = 0;
  Kind kind = Kind::other;
  bool dead =
      false;  // freed while a block was pinned or in transfer: goes when the last one is done
  uint64_t allocated_in = 0;  // Pins::id_ of the operation that made it; 0: none
  std::vector<Block> blocks;
};

}  // namespace bottomless
