// The pins of one operation: what it holds stays resident until they are released.
#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/block.h"

namespace bottomless {

class Engine;
class Room;

// Where a memory access outside any operation comes from.
struct Accessor {
  std::string_view inside;  // the operation on whose thread it happened, if any
  unsigned holding = 0;     // Pins with anything in them that this thread has in this engine
  // The thread is one of several that work for some operation, nobody knows which: that holds what
  // it holds until the access has been served.
  bool helps = false;
};

// The destructor releases them.
// Thread-safety: use one object from one thread at a time, but it may move between threads.
class Pins {
 public:
  explicit Pins(Engine& engine);
  Pins(Pins&& other) noexcept;
  Pins& operator=(Pins&&) = delete;
  ~Pins() { release(); }

  void release() noexcept;
  // The operation has come to its end: what it was to overwrite is overwritten. Otherwise that is as
  // it was before.
  void done() noexcept { done_ = true; }
  bool empty() const { return blocks_.empty(); }

 private:
  friend class Engine;
  friend class Room;
  Engine* engine_;
  uint64_t id_;  // never used again, unlike the address: operations follow each other on one stack
  std::vector<Block*> blocks_;
  bool done_ = false;
  const Accessor* accessor_ = nullptr;  // of those of touch()
};

}  // namespace bottomless
