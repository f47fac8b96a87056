#include "engine/churn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "support/process.h"

namespace bottomless {
namespace {

constexpr Bytes kOversubscription = 6;  // storages in sum, in limits

}  // namespace

Churn::Churn(Engine& engine, Bytes limit, Random random)
    : engine_(engine), limit_(limit), random_(std::move(random)) {}

Churn::~Churn() {
  holder_.reset();
  for (const Bytes bytes : charges_) engine_.discharge(bytes);
  for (const auto& copy : copies_) engine_.free(copy->at, nullptr);
}

void Churn::step() {
  const uint64_t choice = random_.below(100);
  if (choice < 12) {
    allocate();
  } else if (choice < 22) {
    free_one();
  } else if (choice < 66) {
    operate();
  } else if (choice < 70) {
    prefetch();
  } else if (choice < 85) {
    touch();
  } else if (choice < 95) {
    charge_or_discharge();
  } else if (choice < 99) {
    hold_or_release();
  } else {
    ask_for_too_much();
  }
  const EngineStats stats = engine_.stats();
  ASSERT_LE(stats.peak_bytes, limit_) << "the limit was exceeded";
  ASSERT_EQ(stats.charged_bytes, charged_);
  ASSERT_GE(stats.live_storages,
            copies_.size());  // one freed while it is being written lives a little longer
}

Bytes Churn::some_size() {
  if (random_.one_in(4)) return random_.between(1, 5000);
  if (random_.one_in(10)) return random_.between(1, limit_ / 2);
  return random_.between(1, limit_ / 16);
}

Churn::Copy* Churn::add(std::byte* at, Bytes bytes) {
  auto copy = std::make_unique<Copy>();
  copy->at = at;
  copy->expected.resize(bytes);
  total_ += bytes;
  copies_.push_back(std::move(copy));
  return copies_.back().get();
}

void Churn::remove(const Copy* copy) {
  total_ -= copy->bytes();
  std::erase_if(copies_, [&](const auto& each) { return each.get() == copy; });
}

Churn::Range Churn::some_range(Copy& copy, Bytes most, Access access) {
  const Bytes bytes = random_.between(1, std::min(most, copy.bytes()));
  const Bytes offset = random_.below(copy.bytes() - bytes + 1);
  return {&copy, offset, bytes, access};
}

// The memory must be readable, or writable.
void Churn::expect_equal(const Range& range) {
  ASSERT_EQ(std::memcmp(range.at(), range.expected(), range.bytes), 0)
      << "content was lost in a storage of " << range.copy->bytes() << " bytes at offset "
      << range.offset << "+" << range.bytes;
}

void Churn::overwrite(const Range& range) {
  const Bytes skip = random_.below(range.bytes);
  const Bytes bytes =
      random_.one_in(3) ? range.bytes - skip : std::min<Bytes>(range.bytes - skip, 700);
  std::byte* expected = range.copy->expected.data() + range.offset + skip;
  std::memset(expected, static_cast<int>(random_.next()), bytes);
  const uint64_t stamp = random_.next();
  std::memcpy(expected, &stamp, std::min<Bytes>(bytes, sizeof stamp));
  std::memcpy(range.at() + skip, expected, bytes);
}

void Churn::allocate() {
  const Bytes bytes = some_size();
  if (total_ + bytes > kOversubscription * limit_) return free_one();
  // The large ones only piece by piece: they would not fit beside what is held.
  const bool pinned = bytes <= limit_ / 16 && random_.one_in(2);
  Pins pins(engine_);
  Result<void*> at = engine_.allocate(bytes, Kind::other, pinned ? &pins : nullptr, "a test");
  ASSERT_TRUE(at.ok()) << at.error().message;
  Copy* copy = add(static_cast<std::byte*>(at.value()), bytes);
  for (Bytes offset = 0; offset < bytes; offset += limit_ / 32) {
    const Range part{copy, offset, std::min(limit_ / 32, bytes - offset), Access::write};
    if (!pinned) {
      pins.release();
      const Need need{.address = part.at(), .bytes = part.bytes, .access = Access::write};
      const Result<void> done = engine_.pin(pins, {&need, 1}, "a test");
      ASSERT_TRUE(done.ok()) << done.error().message;
    }
    std::byte* expected = copy->expected.data() + offset;
    for (Bytes i = 0; i + 8 <= part.bytes; i += 64) {
      const uint64_t stamp = random_.next();
      std::memcpy(expected + i, &stamp, sizeof stamp);
    }
    std::memcpy(part.at(), expected, part.bytes);
  }
}

void Churn::free_one() {
  if (copies_.empty()) return;
  Copy* copy = random_.pick(copies_).get();
  if (copy->held) return;
  engine_.free(copy->at, nullptr);
  remove(copy);
}

void Churn::operate() {
  if (copies_.empty()) return;
  std::vector<Range> ranges;
  std::vector<Need> needs;
  for (uint64_t i = random_.between(1, 3); i > 0; --i) {
    const Access access = random_.one_in(2) ? Access::read : Access::write;
    ranges.push_back(some_range(*random_.pick(copies_), limit_ / 32, access));
    needs.push_back(
        {.address = ranges.back().at(), .bytes = ranges.back().bytes, .access = access});
  }
  Pins pins(engine_);
  const Result<void> pinned = engine_.pin(pins, needs, "a test");
  ASSERT_TRUE(pinned.ok()) << pinned.error().message;
  for (const Range& range : ranges) expect_equal(range);
  if (random_.one_in(4)) {  // a temporary, gone before the operation ends
    Result<void*> temporary =
        engine_.allocate(random_.between(1, limit_ / 16), Kind::activation, &pins, "a test");
    ASSERT_TRUE(temporary.ok()) << temporary.error().message;
    std::memset(temporary.value(), 0x77, 1);
    engine_.free(temporary.value(), &pins);
  }
  if (random_.one_in(6) && total_ < kOversubscription * limit_) {  // an output that copies an input
    const Bytes bytes = ranges[0].bytes;
    Result<void*> output = engine_.allocate(bytes, Kind::activation, &pins, "a test");
    ASSERT_TRUE(output.ok()) << output.error().message;
    std::memcpy(output.value(), ranges[0].at(), bytes);
    Copy* copy = add(static_cast<std::byte*>(output.value()), bytes);
    std::memcpy(copy->expected.data(), ranges[0].expected(), bytes);
  }
  for (const Range& range : ranges) {
    expect_equal(range);
    if (range.access == Access::write) overwrite(range);
  }
  Copy* input = ranges[0].copy;
  if (random_.one_in(10) &&
      !input->held) {  // the last reference to an input dies while it is in use
    engine_.free(input->at, &pins);
    expect_equal(ranges[0]);
    pins.release();
    remove(input);
  }
}

// Whatever it brings in or not, nothing may change but the time that others wait.
void Churn::prefetch() {
  std::vector<Need> needs;
  for (uint64_t i = random_.below(4); i > 0 && !copies_.empty(); --i) {
    const Range range = some_range(*random_.pick(copies_), limit_ / 4, Access::read);
    needs.push_back({.address = range.at(), .bytes = range.bytes});
  }
  engine_.prefetch(needs);
}

// What a fault handler does, with copies by the kernel in place of instructions that fault.
void Churn::touch() {
  if (copies_.empty()) return;
  const Access access = random_.one_in(2) ? Access::read : Access::write;
  Range range = some_range(*random_.pick(copies_), 64, access);
  range.bytes = std::min<Bytes>(range.bytes, 4096 - reinterpret_cast<uintptr_t>(range.at()) % 4096);
  std::array<std::byte, 64> found{};
  if (access == Access::write) {
    for (Bytes i = 0; i < range.bytes; ++i)
      range.copy->expected[range.offset + i] = static_cast<std::byte>(random_.next());
  }
  for (;;) {  // another thread of the engine may take the block away between the two
    const bool done = access == Access::write
                          ? try_copy_in(range.at(), {range.expected(), range.bytes})
                          : try_copy_out({found.data(), range.bytes}, range.at());
    if (done) break;
    const Result<bool> touched = engine_.touch(range.at(), access);
    ASSERT_TRUE(touched.ok()) << touched.error().message;
    ASSERT_TRUE(touched.value());
  }
  if (access == Access::read) {
    ASSERT_EQ(std::memcmp(found.data(), range.expected(), range.bytes), 0) << "content was lost";
  }
}

void Churn::hold_or_release() {
  if (holder_ != nullptr) {
    holder_.reset();
    for (const auto& copy : copies_) copy->held = false;
    return;
  }
  if (copies_.empty()) return;
  holder_ = std::make_unique<Pins>(engine_);
  const Range range = some_range(*random_.pick(copies_), limit_ / 8, Access::read);
  range.copy->held = true;
  const Need need{.address = range.at(), .bytes = range.bytes, .access = Access::read};
  const Result<void> pinned = engine_.pin(*holder_, {&need, 1}, "a test");
  ASSERT_TRUE(pinned.ok()) << pinned.error().message;
}

void Churn::charge_or_discharge() {
  const Bytes bytes = random_.between(1, limit_ / 32);
  if (charged_ + bytes > limit_ / 8 || (!charges_.empty() && random_.one_in(2))) {
    const size_t index = random_.below(charges_.size());
    engine_.discharge(charges_[index]);
    charged_ -= charges_[index];
    charges_.erase(charges_.begin() + static_cast<ptrdiff_t>(index));
    return;
  }
  const Result<void> charged = engine_.charge(bytes, nullptr, "a test");
  ASSERT_TRUE(charged.ok()) << charged.error().message;
  charges_.push_back(bytes);
  charged_ += bytes;
}

void Churn::ask_for_too_much() {
  if (holder_ != nullptr) return;  // the engine would rightly wait for its release
  Pins pins(engine_);
  const Result<void*> at = engine_.allocate(limit_ + 1, Kind::other, &pins, "a test");
  ASSERT_FALSE(at.ok());
  ASSERT_EQ(at.error().code, Code::no_memory);
  ASSERT_FALSE(engine_.charge(2 * limit_, nullptr, "a test").ok());
}

void Churn::check_everything() {
  holder_.reset();
  for (const auto& copy : copies_) {
    copy->held = false;
    for (Bytes offset = 0; offset < copy->bytes(); offset += limit_ / 8) {
      const Range range{copy.get(), offset, std::min(limit_ / 8, copy->bytes() - offset),
                        Access::read};
      Pins pins(engine_);
      const Need need{.address = range.at(), .bytes = range.bytes, .access = Access::read};
      const Result<void> pinned = engine_.pin(pins, {&need, 1}, "a test");
      ASSERT_TRUE(pinned.ok()) << pinned.error().message;
      expect_equal(range);
    }
  }
}

}  // namespace bottomless
