#include "engine/rig.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "io/checked_store.h"
#include "support/process.h"

namespace bottomless {
namespace {

uint64_t word(uint64_t key, size_t i) {
  return key * 0x9E3779B97F4A7C15ull ^ i * 0xD6E8FEB86659FD93ull;
}

MemoryStoreOptions store_of(const RigOptions& options) {
  MemoryStoreOptions store = options.store;
  store.clock = options.clock;
  return store;
}

}  // namespace

void write_pattern(std::byte* at, Bytes bytes, uint64_t key) {
  for (size_t i = 0; i < bytes / 8; ++i) {
    const uint64_t value = word(key, i);
    std::memcpy(at + i * 8, &value, 8);
  }
  std::memset(at + bytes / 8 * 8, static_cast<int>(key), bytes % 8);
}

bool continues_pattern(const std::byte* at, Bytes bytes, uint64_t key, Bytes from) {
  for (size_t i = 0; i < bytes / 8; ++i) {
    const uint64_t value = word(key, from / 8 + i);
    if (std::memcmp(at + i * 8, &value, 8) != 0) return false;
  }
  for (Bytes i = bytes / 8 * 8; i < bytes; ++i) {
    if (at[i] != static_cast<std::byte>(key)) return false;
  }
  return true;
}

bool has_pattern(const std::byte* at, Bytes bytes, uint64_t key) {
  return continues_pattern(at, bytes, key, 0);
}

std::unique_ptr<Engine> make_engine(const RigOptions& options, Store& store) {
  Result<std::unique_ptr<Heap>> heap =
      Heap::create({.limit = options.limit,
                    .frames = options.frames,
                    .poison = options.eviction == Eviction::eagerly ? Poison::on : Poison::off});
  EXPECT_TRUE(heap.ok()) << heap.error().message;
  const EngineOptions engine{.limit = options.limit,
                             .fixed_overhead = options.fixed_overhead,
                             .eviction = options.eviction,
                             .movement = options.movement,
                             .recorded = options.recorded,
                             .spare_places = options.spare_places,
                             .planning = options.planning,
                             .timeout = options.timeout,
                             .log = options.log,
                             .clock = options.clock,
                             .before_waiting = options.before_waiting};
  return std::make_unique<Engine>(engine, std::move(heap).value(), store,
                                  std::make_unique<Farthest>());
}

Rig::Rig(const RigOptions& options) : options_(options) {
  auto store = std::make_unique<MemoryStore>(store_of(options));
  store_ = store.get();
  top_ = std::move(store);
  if (options.checksums) top_ = std::make_unique<CheckedStore>(std::move(top_));
  engine_ = make_engine(options, *top_);
}

Rig::~Rig() {
  store_->release();
  const EngineStats stats = engine_->stats();
  EXPECT_LE(stats.peak_bytes, options_.limit) << "the limit was exceeded";
  engine_.reset();
  EXPECT_EQ(store_->extents(), 0u) << "the engine left something in the store";
}

Bytes Rig::resident() const {
  const EngineStats stats = engine_->stats();
  Bytes total = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) total += stats.resident.of(static_cast<Kind>(kind));
  return total;
}

std::byte* Rig::allocate(Bytes bytes, Kind kind) {
  Result<void*> at = engine_->allocate(bytes, kind, nullptr, "a test");
  EXPECT_TRUE(at.ok()) << at.error().message;
  return static_cast<std::byte*>(at.value());
}

std::byte* Rig::allocate_pinned(Bytes bytes, Pins& pins) {
  Result<void*> at = engine_->allocate(bytes, Kind::other, &pins, "a test");
  EXPECT_TRUE(at.ok()) << at.error().message;
  return static_cast<std::byte*>(at.value());
}

std::byte* Rig::filled(Bytes bytes, uint64_t key) {
  Pins pins(*engine_);
  std::byte* at = allocate_pinned(bytes, pins);
  write_pattern(at, bytes, key);
  return at;
}

Result<void> Rig::try_pin(Pins& pins, const void* at, Bytes bytes, Access access,
                          std::string_view who) {
  const Need need{.address = at, .bytes = bytes, .access = access};
  return engine_->pin(pins, {&need, 1}, who);
}

void Rig::pin(Pins& pins, const void* at, Bytes bytes, Access access) {
  const Result<void> pinned = try_pin(pins, at, bytes, access);
  EXPECT_TRUE(pinned.ok()) << pinned.error().message;
}

void Rig::fill(std::byte* at, Bytes bytes, uint64_t key) {
  Pins pins(*engine_);
  pin(pins, at, bytes, Access::write);
  write_pattern(at, bytes, key);
}

bool Rig::holds(std::byte* at, Bytes bytes, uint64_t key) {
  Pins pins(*engine_);
  pin(pins, at, bytes, Access::read);
  return has_pattern(at, bytes, key);
}

void Rig::push_out(const std::byte* at) {
  std::vector<std::byte*> others;
  for (int i = 0; i < 1000 && is_readable(at); ++i) {
    Pins pins(*engine_);
    others.push_back(allocate_pinned(options_.frames.large, pins));
  }
  EXPECT_FALSE(is_readable(at)) << "it does not leave";
  for (std::byte* other : others) free(other);
}

}  // namespace bottomless
