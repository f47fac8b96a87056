// An engine over a MemoryStore, small enough that a handful of blocks fill it, with the calls that tests make all the
// time. Its destructor checks what must hold after every test: the limit was kept, and nothing is left in the store.
// Thread-safety: that of the engine.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "support/memory_store.h"
#include "support/virtual_clock.h"

namespace bottomless {

struct RigOptions {
  Bytes limit = 2_MiB;
  FrameSizes frames{.large = 512_KiB,
                    .small = 64_KiB};  // three blocks of 512 KiB fit, a fourth does not
  Bytes fixed_overhead = 0;
  Eviction eviction = Eviction::when_needed;
  Movement movement = Movement::planned;
  bool recorded = false;
  MemoryStoreOptions store{};
  bool checksums = false;  // of what is in the store
  size_t spare_places = 0;
  std::function<void()> planning = [] {};  // see EngineOptions
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  const Clock* clock = &kStopped;  // of the store, too
  LogSink log = [](LogLevel, std::string_view) {};
  std::function<void()> before_waiting = [] {};
};

std::unique_ptr<Engine> make_engine(const RigOptions& options, Store& store);

class Rig {
 public:
  explicit Rig(const RigOptions& options = {});
  ~Rig();

  MemoryStore& store() { return *store_; }
  Engine& engine() { return *engine_; }
  EngineStats stats() const { return engine_->stats(); }
  Bytes resident() const;  // over all kinds

  // Nothing of it is resident yet.
  std::byte* allocate(Bytes bytes, Kind kind = Kind::other);
  std::byte* allocate_pinned(Bytes bytes, Pins& pins);
  // A storage whose content holds(at, bytes, key) recognises, and nobody pins.
  std::byte* filled(Bytes bytes, uint64_t key);

  Result<void> try_pin(Pins& pins, const void* at, Bytes bytes, Access access,
                       std::string_view who = "a test");
  void pin(Pins& pins, const void* at, Bytes bytes, Access access);
  // Pins for a moment, to fill or to look.
  void fill(std::byte* at, Bytes bytes, uint64_t key);
  bool holds(std::byte* at, Bytes bytes, uint64_t key);
  void free(std::byte* at) { engine_->free(at, nullptr); }

  // Brings in other storages until `at` has left; they are freed again.
  void push_out(const std::byte* at);

 private:
  const RigOptions options_;
  MemoryStore* store_ = nullptr;
  std::unique_ptr<Store> top_;  // that store, or one over it
  std::unique_ptr<Engine> engine_;
};

// The content that a key stands for; the memory must be accessible.
void write_pattern(std::byte* at, Bytes bytes, uint64_t key);
bool has_pattern(const std::byte* at, Bytes bytes, uint64_t key);
// For a part of it: `from`, a multiple of 8, is where in the pattern the memory begins.
bool continues_pattern(const std::byte* at, Bytes bytes, uint64_t key, Bytes from);

}  // namespace bottomless
