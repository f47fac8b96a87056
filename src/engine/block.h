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

#include "base/kind.h"
#include "engine/deferred_work.h"
#include "engine/places.h"
#include "engine/source.h"
#include "memory/access.h"
#include "memory/frame_pool.h"
#include "plan/eviction_policy.h"
#include "plan/trace_recorder.h"

namespace bottomless {

struct Storage;

enum class State : uint8_t { away, fetching, resident, writing };
inline constexpr std::array<std::string_view, 4> kStateNames{"away", "fetching", "resident",
                                                             "writing"};

// Every way a block's state may change; docs/states.md draws it.
struct Transition {
  State from;
  State to;
  std::string_view when;
};
inline constexpr std::array kTransitions{
    Transition{State::away, State::fetching, "it is wanted, and its content lies below"},
    Transition{State::away, State::resident, "it is wanted, and none of its content is"},
    Transition{State::fetching, State::resident, "the read succeeded"},
    Transition{State::fetching, State::away, "the read failed, or is of no use any more"},
    Transition{State::resident, State::writing, "it is evicted, and newer than what lies below"},
    Transition{State::resident, State::away, "it is evicted, and what lies below is the same"},
    Transition{State::writing, State::resident, "the write ended, well or not"},
};

// There are many: every byte of one counts against the limit. Pins come first, where the base leaves room.
struct Block : EvictionCandidate {
  uint32_t pins = 0;
  Storage* storage = nullptr;
  std::byte* at = nullptr;
  Bytes bytes = 0;
  Place place;  // where its content lies below; kept when the memory is newer, to be written again
  std::unique_ptr<Error> failure;  // of the last fetch
  std::shared_ptr<Frames> lifted;  // its memory while it is written out of sight
  uint32_t copying = 0;            // how many copy it out; who would write to it waits
  State state = State::away;
  Access access = Access::none;  // how it is mapped; a clean block is never writable
  bool dirty = false;            // the memory is newer than the place
  // Whoever pins it will write all of it, so its content was not fetched; unless that is done, the
  // content is what lies below.
  bool unfilled = false;
  bool ahead = false;   // the fetch under way was begun before anybody waited for it
  bool early = false;   // it was fetched before anybody waited for it, and nobody has used it since
  bool leaves = false;  // as soon as nobody pins it: the schedule has other use for its room
  bool stays = false;   // although it is being written: it is wanted again
  bool outside = false;  // its content below is the source's, not what lies at `place`
  bool stale = false;    // what the fetch under way brings has been invalidated meanwhile

  bool has_content() const { return outside || !place.empty(); }  // below

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
struct Outside {
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
  std::vector<DeferredWork*> deferred;  // what was put off, the oldest first
  std::unique_ptr<Watch> watch;
  std::unique_ptr<Outside> outside;
  std::vector<Block> blocks;
  uint32_t planned = 0;  // its index in the trace that is followed
  bool dead =
      false;  // freed while a block was pinned or in transfer: goes when the last one is done
  bool dropped = false;  // freed while work on it was deferred: goes when that is done
  bool lasting = false;  // it has outlived a step
};

}  // namespace bottomless
