// Storages whose content a source has, and content copied out without being brought in.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "engine/rig.h"
#include "support/aligned_buffer.h"

namespace bottomless {
namespace {

// Answers each fetch from a thread of its own, with the pattern of `key`, or not before it is told to.
class PatternSource final : public Source {
 public:
  ~PatternSource() override {
    for (std::thread& thread : threads_) thread.join();
  }

  void fetch(Bytes offset, Bytes bytes, Pieces into, Priority priority, Done done) override {
    ++fetches;
    ahead += priority == Priority::prefetch;
    auto answer = [key = key.load(), fails = fails.load(), offset, bytes, into = std::move(into),
                   done = std::move(done)] {
      if (fails) return done(Error{Code::io, "rank 1 has ended"});
      std::vector<std::byte> all(offset + bytes);
      write_pattern(all.data(), all.size(), key);
      Bytes at = offset;
      for (const std::span<std::byte> piece : into) {
        const Bytes here = std::min<Bytes>(piece.size(), offset + bytes - at);
        std::memcpy(piece.data(), all.data() + at, here);
        at += here;
      }
      done({});
    };
    if (held) {
      waiting_.push_back(std::move(answer));
    } else {
      threads_.emplace_back(std::move(answer));
    }
  }
  void raise_priority(Bytes) override { ++hurried; }
  void answer_held() {
    for (auto& answer : std::exchange(waiting_, {})) answer();
  }

  std::atomic<uint64_t> key{1};
  std::atomic<bool> fails{false};
  std::atomic<bool> held{false};
  std::atomic<int> fetches{0}, hurried{0}, ahead{0};

 private:
  std::vector<std::thread> threads_;
  std::deque<std::function<void()>> waiting_;
};

constexpr Bytes kSize = 700_KiB;  // two blocks

struct Sourced {
  explicit Sourced(Engine::Fetched fetched = Engine::Fetched::dropped) {
    Result<void*> made =
        rig.engine().allocate_from(source, kSize, Kind::parameter, fetched, "a test");
    EXPECT_TRUE(made.ok());
    at = static_cast<std::byte*>(made.value());
  }
  ~Sourced() { rig.free(at); }
  std::shared_ptr<PatternSource> source = std::make_shared<PatternSource>();
  Rig rig;
  std::byte* at = nullptr;
};

TEST(Sourced, ContentComesFromTheSourceWhenItIsPinned) {
  Sourced it;
  EXPECT_EQ(it.source->fetches, 0);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  EXPECT_EQ(it.source->fetches, 2);
  EXPECT_EQ(it.rig.stats().gathered_bytes, kSize);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  EXPECT_EQ(it.source->fetches, 2) << "it was there already";
}

TEST(Sourced, WhatLeavesIsDroppedAndFetchedAnew) {
  Sourced it;
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  it.rig.push_out(it.at);
  it.rig.push_out(it.at + 512_KiB);
  EXPECT_EQ(it.rig.stats().written_bytes, 0u)
      << "only the others, which were freed, may be written";
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  EXPECT_EQ(it.source->fetches, 4);
}

TEST(Sourced, WhatIsKeptGoesToTheStoreAndComesBackFromThere) {
  Sourced it(Engine::Fetched::kept);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  it.rig.push_out(it.at);
  it.rig.push_out(it.at + 512_KiB);
  EXPECT_GE(it.rig.stats().written_bytes, kSize);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  EXPECT_EQ(it.source->fetches, 2);
  EXPECT_FALSE(it.rig.engine().written_here(it.at));
}

TEST(Sourced, OutdatedContentIsFetchedAgain) {
  for (const auto fetched : {Engine::Fetched::dropped, Engine::Fetched::kept}) {
    Sourced it(fetched);
    EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
    it.rig.push_out(it.at);  // one block here, one away
    it.source->key = 2;
    it.rig.engine().invalidate(it.at);
    EXPECT_TRUE(it.rig.holds(it.at, kSize, 2));
  }
}

TEST(Sourced, AWriteMakesItThisProcesssOwnUntilItIsOutdated) {
  Sourced it;
  it.rig.fill(it.at, kSize, 7);
  EXPECT_TRUE(it.rig.engine().written_here(it.at));
  it.rig.push_out(it.at);
  it.rig.push_out(it.at + 512_KiB);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 7));
  it.rig.engine().invalidate(it.at);
  EXPECT_FALSE(it.rig.engine().written_here(it.at));
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
}

TEST(Sourced, AFetchUnderWayWhenItIsOutdatedIsOfNoUse) {
  Sourced it;
  it.source->held = true;
  const Need need{.address = it.at, .bytes = kSize, .access = Access::read};
  it.rig.engine().prefetch({&need, 1});
  EXPECT_EQ(it.source->ahead, 2);
  it.source->key = 2;
  it.source->held = false;
  it.rig.engine().invalidate(it.at);
  std::thread late([&] { it.source->answer_held(); });
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 2));
  late.join();
}

TEST(Sourced, WhatComesFromTheStoreWhenItIsOutdatedIsOfNoUseAndLeavesOnce) {
  Sourced it(Engine::Fetched::kept);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
  it.rig.push_out(it.at);
  it.rig.push_out(it.at + 512_KiB);
  it.rig.engine().wait_for_io();
  it.rig.store().hold();
  const Need need{.address = it.at, .bytes = kSize, .access = Access::read};
  it.rig.engine().prefetch({&need, 1});
  it.rig.store().wait_for_pending(1);
  it.source->key = 2;
  std::thread invalidates([&] { it.rig.engine().invalidate(it.at); });
  for (int i = 0; i < 100; ++i) std::this_thread::yield();
  it.rig.store().release();
  invalidates.join();
  std::byte* other = it.rig.filled(512_KiB, 3);  // nothing of it is there that could leave for this
  it.rig.push_out(other);
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 2));
  it.rig.free(other);
}

TEST(Sourced, WhatIsFreedDuringAFetchGoesWhenItEnds) {
  for (const auto fetched : {Engine::Fetched::dropped, Engine::Fetched::kept}) {
    Rig rig;
    auto source = std::make_shared<PatternSource>();
    source->held = true;
    Result<void*> made =
        rig.engine().allocate_from(source, kSize, Kind::parameter, fetched, "a test");
    ASSERT_TRUE(made.ok());
    const Need need{.address = made.value(), .bytes = kSize, .access = Access::read};
    rig.engine().prefetch({&need, 1});
    rig.free(static_cast<std::byte*>(made.value()));
    EXPECT_EQ(rig.engine().live_storages(), 1u);
    source->answer_held();
    EXPECT_EQ(rig.engine().live_storages(), 0u);
  }
}

TEST(Sourced, AFetchBegunAheadIsHurriedByWhoWaits) {
  Sourced it;
  it.source->held = true;
  const Need need{.address = it.at, .bytes = kSize, .access = Access::read};
  it.rig.engine().prefetch({&need, 1});
  std::thread waits([&] { EXPECT_TRUE(it.rig.holds(it.at, kSize, 1)); });
  while (it.source->hurried < 2) std::this_thread::yield();
  it.source->answer_held();
  waits.join();
}

TEST(Sourced, AFailureIsTheOperationsAndTheNextOneTriesAgain) {
  Sourced it;
  it.source->fails = true;
  {
    Pins pins(it.rig.engine());
    const Result<void> pinned = it.rig.try_pin(pins, it.at, kSize, Access::read);
    ASSERT_FALSE(pinned.ok());
    EXPECT_NE(pinned.error().message.find("rank 1 has ended"), std::string::npos);
  }
  it.rig.engine().wait_for_io();  // the other block's fails, too
  it.source->fails = false;
  EXPECT_TRUE(it.rig.holds(it.at, kSize, 1));
}

TEST(CopyOut, ReadsWhatIsHereAndWhatIsAwayWithoutBringingItIn) {
  Rig rig;
  std::byte* at = rig.filled(kSize, 3);
  rig.push_out(at);
  const Bytes resident = rig.resident();
  AlignedBuffer buffer(Engine::bypass_buffer_bytes(kSize));
  const std::span<std::byte> into(buffer.data(), Engine::bypass_buffer_bytes(kSize));
  for (const Bytes from :
       {Bytes{0}, Bytes{8}, Bytes{4096}, Bytes{123456}, 512_KiB - 8, 512_KiB, 600_KiB + 8}) {
    Bytes done = from;
    while (done < kSize) {
      const Result<Bytes> part = rig.engine().read_bypassing_heap(at + done, kSize - done, into);
      ASSERT_TRUE(part.ok()) << part.error().message;
      ASSERT_GT(part.value(), 0u);
      ASSERT_TRUE(continues_pattern(into.data(), part.value(), 3, done)) << from << ' ' << done;
      done += part.value();
    }
  }
  EXPECT_EQ(rig.resident(), resident);
  rig.free(at);
}

TEST(CopyOut, AsItCameIsNeverWhatTheProgramIsWriting) {
  Sourced it;
  AlignedBuffer buffer(Engine::bypass_buffer_bytes(kSize));
  for (int turn = 0; turn < 200; ++turn) {
    it.rig.engine().invalidate(it.at);
    ASSERT_TRUE(it.rig.holds(it.at, kSize, 1));
    std::thread program([&] {
      if (turn % 3 > 0) std::this_thread::yield();
      Pins pins(it.rig.engine());
      it.rig.pin(pins, it.at, kSize, Access::write);
      std::memset(it.at, 7, kSize);
    });
    const Result<Bytes> part = it.rig.engine().read_bypassing_heap(
        it.at, kSize, {buffer.data(), Engine::bypass_buffer_bytes(kSize)},
        Engine::Wanted::as_it_came);
    program.join();
    if (part.ok()) {
      ASSERT_TRUE(continues_pattern(buffer.data(), part.value(), 1, 0)) << turn;
    }
    const Result<Bytes> later = it.rig.engine().read_bypassing_heap(
        it.at, kSize, {buffer.data(), Engine::bypass_buffer_bytes(kSize)},
        Engine::Wanted::as_it_came);
    ASSERT_FALSE(later.ok());
  }
}

TEST(CopyOut, DoesWhatWasPutOffFirst) {
  Rig rig;
  std::byte* at = rig.filled(512_KiB, 3);
  rig.push_out(at);  // memory has been short: work may be deferred
  class Fill final : public DeferredWork {
   public:
    Fill(Rig& rig, std::byte* at) : rig_(rig), at_(at) {}
    Result<void> run() override {
      rig_.fill(at_, 512_KiB, 4);
      return {};
    }

   private:
    Rig& rig_;
    std::byte* at_;
  };
  const Need need{.address = at, .bytes = 512_KiB, .access = Access::write};
  ASSERT_TRUE(rig.engine().defer({&need, 1}, std::make_shared<Fill>(rig, at)));
  AlignedBuffer buffer(Engine::bypass_buffer_bytes(512_KiB));
  const Result<Bytes> copied = rig.engine().read_bypassing_heap(
      at, 512_KiB, {buffer.data(), Engine::bypass_buffer_bytes(512_KiB)});
  ASSERT_TRUE(copied.ok());
  EXPECT_TRUE(has_pattern(buffer.data(), 512_KiB, 4));
  rig.free(at);
}

}  // namespace
}  // namespace bottomless
