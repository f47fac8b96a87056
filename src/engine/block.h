// The engine's records. A storage is one allocation at one address for its whole life; its
// blocks, cut at a fixed size, are what becomes resident and leaves, each by itself.
// Thread-safety: guarded by the engine's lock.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/access.h"
#include "base/kind.h"
#include "engine/places.h"
#include "engine/source.h"
#include "memory/frame_pool.h"
#include "plan/eviction_policy.h"
#include "plan/trace_recorder.h"

namespace bottomless {

class DeferredWork;
struct Storage;

enum class State : uint8_t { absent, prefetching, fetching, discarding, clean, dirty, writing };
inline constexpr std::array<std::string_view, 7> kStateNames{
    "absent", "prefetching", "fetching", "discarding", "clean", "dirty", "writing"};

// Every way a block's state may change; docs/states.md draws it.
struct Transition {
  State from;
  State to;
  std::string_view when;
};
inline constexpr std::array kTransitions{
    Transition{State::absent, State::fetching, "somebody waits for its content"},
    Transition{State::absent, State::prefetching, "its content is needed soon"},
    Transition{State::absent, State::dirty, "it has no content, or all of it is overwritten"},
    Transition{State::prefetching, State::fetching, "somebody waits for it"},
    Transition{State::prefetching, State::clean, "the read succeeded"},
    Transition{State::prefetching, State::dirty, "a remote read succeeded, and the store lacks it"},
    Transition{State::prefetching, State::absent, "the read failed"},
    Transition{State::prefetching, State::discarding, "it was invalidated"},
    Transition{State::fetching, State::clean, "the read succeeded"},
    Transition{State::fetching, State::dirty, "the read succeeded, for a writer or from remote"},
    Transition{State::fetching, State::absent, "the read failed"},
    Transition{State::fetching, State::discarding, "it was invalidated"},
    Transition{State::discarding, State::absent, "the read ended"},
    Transition{State::clean, State::dirty, "it is written to"},
    Transition{State::clean, State::absent, "it is evicted"},
    Transition{State::dirty, State::writing, "it is evicted"},
    Transition{State::dirty, State::absent, "it was invalidated, or its writer failed"},
    Transition{State::writing, State::clean, "the write succeeded"},
    Transition{State::writing, State::dirty, "the write failed"},
};

// There are many: every byte of one counts against the limit. Pins come first, where the base leaves room.
struct Block : EvictionCandidate {
  uint32_t pins = 0;
  Storage* storage = nullptr;
  std::byte* at = nullptr;
  Bytes bytes = 0;
  Place place;  // where its content lies below; kept when the memory is newer, to be written again
  std::unique_ptr<Error> failure;         // of the last fetch
  std::shared_ptr<Frames> hidden_frames;  // its memory while it is written without being mapped
  uint32_t readers = 0;  // that copy it without the lock; who would write to it waits
  State state = State::absent;
  Access access = Access::none;  // how it is mapped; a clean block is never writable
  bool remote = false;           // its content below is the source's, not what lies at `place`
  // Whoever pins it will write all of it, so its content was not fetched; unless that is done, the
  // content is what lies below.
  bool unfilled = false;
  bool prefetched_unused = false;    // nobody has used it since it was prefetched
  bool evict_when_unpinned = false;  // the schedule has other use for its room
  bool keep_after_write = false;     // it is wanted again

  bool is_resident() const { return state == State::clean || state == State::dirty; }
  bool in_memory() const { return is_resident() || state == State::writing; }
  bool is_arriving() const {
    return state == State::fetching || state == State::prefetching || state == State::discarding;
  }
  bool in_transfer() const { return is_arriving() || state == State::writing; }
  bool has_content() const { return remote || !place.empty(); }  // below

  void become(State next);
};

// A number that the program has worked out from all of a storage's content; `what` tells several kinds apart.
struct Derived {
  uint64_t what = 0;
  double value = 0;
};

// While a storage has one, none of its blocks is writable, so that a write is noticed.
struct Watch {
  uint64_t id = 0;
  std::optional<Derived> derived;
};

// Of a storage whose content others have: see Engine::allocate_from.
struct Remote {
  std::shared_ptr<Source> source;
  bool kept =
      false;  // what was fetched goes to the store when it leaves; otherwise it is fetched anew
  bool written = false;  // here, since it was last invalidated
};

// There are many: every byte of one counts against the limit.
struct Storage {
  std::byte* at = nullptr;
  Bytes bytes = 0;
  uint64_t allocated_in = 0;  // Pins::id_ of the operation that made it; 0: none
  TracedStorage traced;
  uint64_t planned_in = 0;              // the binding that `planned` is of
  std::vector<DeferredWork*> deferred;  // on it, the oldest first
  std::unique_ptr<Watch> watch;
  std::unique_ptr<Remote> remote;
  std::vector<Block> blocks;
  uint32_t planned = 0;  // its index in the trace that is followed
  bool dead =
      false;  // freed while a block was pinned or in transfer: goes when the last one is done
  bool dropped = false;  // freed while work on it was deferred: goes when that is done
  bool lasting = false;  // it has outlived a step
};

}  // namespace bottomless
