#include "os/session_table.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "support/random.h"
#include "support/sanitizer.h"

namespace bottomless {
namespace {

constexpr Bytes kRange = 4096;

// What the table asks an engine.
class CountingEngine {
 public:
  explicit CountingEngine(std::span<const std::byte> addresses) : addresses_(addresses) {}
  std::span<const std::byte> addresses() const { return addresses_; }
  void wait_for_io() { ++waited_; }  // under the owner's lock, as retire() is
  size_t live_storages() const { return living_.load(); }
  const std::byte* allocate() {
    ++living_;
    return addresses_.data() + kRange / 2;
  }
  void free() { --living_; }

 private:
  std::span<const std::byte> addresses_;
  int waited_ = 0;
  std::atomic<size_t> living_{0};
};

class CountingSession {
 public:
  // `taken` while it lives.
  CountingSession(uint64_t serial, std::span<const std::byte> addresses, bool& taken)
      : serial_(serial), engine_(addresses), taken_(taken) {
    ++alive;
    taken_ = true;
  }
  ~CountingSession() {
    serial_ = 0;  // whoever reads it now reads what is being destroyed: a race, to ThreadSanitizer
    --alive;
    taken_ = false;
  }
  CountingEngine& engine() { return engine_; }
  Bytes memory() const { return 100 + serial_; }
  uint64_t serial() const { return serial_; }

  static inline std::atomic<int> alive{0};

 private:
  uint64_t serial_;
  CountingEngine engine_;
  bool& taken_;
};

using Table = BasicSessionTable<CountingSession>;

class Sessions : public testing::Test {
 protected:
  // Ranges come again, as those of address spaces do, but two that live have different ones.
  CountingSession* open() {
    size_t range = ++serial_ % taken_.size();
    while (taken_[range]) range = (range + 1) % taken_.size();
    return table_.publish(std::make_unique<CountingSession>(
        serial_, std::span(memory_).subspan(range * kRange, kRange), taken_[range]));
  }
  void in_threads(int count, const std::function<void(int)>& body,
                  const std::function<void()>& meanwhile) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&, i] {
        while (!stop_.load()) body(i);
      });
    meanwhile();
    stop_.store(true);
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>((Table::kMost + 1) * kRange);
  std::array<bool, Table::kMost + 1> taken_{};  // by range
  uint64_t serial_ = 0;
  std::atomic<bool> stop_{false};
  Table table_;
};

constexpr int kRounds = kSanitizer ? 100000 : 300000;

TEST_F(Sessions, AreFoundByAddressNumberAndAsTheCurrentOne) {
  EXPECT_FALSE(table_.use_current());
  EXPECT_EQ(table_.current_limit(), ~Bytes{0});
  CountingSession* session = open();
  EXPECT_FALSE(table_.has_current());
  table_.set_current(session);
  EXPECT_TRUE(table_.is_current(session));
  EXPECT_EQ(table_.current_limit(), 101u);
  EXPECT_EQ(table_.use_current().get(), session);
  EXPECT_EQ(table_.use(session->serial()).get(), session);
  EXPECT_FALSE(table_.use(uint64_t{4711}));
  const auto addresses = session->engine().addresses();
  EXPECT_EQ(table_.owner_of(addresses.data()), session);
  EXPECT_EQ(table_.owner_of(addresses.data() + kRange - 1), session);
  EXPECT_EQ(table_.owner_of(addresses.data() - 1), nullptr);
  EXPECT_EQ(table_.owner_of(addresses.data() + kRange), nullptr);
}

TEST_F(Sessions, EndWhenTheyAreNotCurrentAndNothingNeedsThem) {
  CountingSession* session = open();
  table_.set_current(session);
  table_.retire();
  EXPECT_EQ(CountingSession::alive, 1) << "it is current";
  const std::byte* storage = session->engine().allocate();
  table_.clear_current();
  table_.retire();
  EXPECT_EQ(table_.owner_of(storage), session) << "it has a storage";
  {
    const Table::Use use = table_.use(*session);
    session->engine().free();
    table_.retire();
    EXPECT_EQ(CountingSession::alive, 1) << "it is used";
  }
  table_.retire();
  EXPECT_EQ(CountingSession::alive, 0);
  EXPECT_EQ(table_.count(), 0u);
  EXPECT_EQ(table_.owner_of(storage), nullptr);
  EXPECT_FALSE(table_.use(uint64_t{1}));
}

TEST_F(Sessions, OneMoreThanThereIsRoomForIsRefused) {
  for (size_t i = 0; i < Table::kMost; ++i) EXPECT_NE(open(), nullptr);
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(table_.count(), Table::kMost);
  table_.retire();
  EXPECT_EQ(CountingSession::alive, 0);
  EXPECT_NE(open(), nullptr);
}

// Operators and allocations of several threads while the program opens and closes limits.
TEST_F(Sessions, AreOpenedAndClosedWhileThreadsUseThem) {
  std::atomic<uint64_t> latest{0}, uses{0}, storages{0};
  const auto work = [&](int thread) {
    if (thread == 0) {  // frees what was charged to a limit that may have ended
      const uint64_t serial = latest.load();
      if (serial == 0) return;
      const Table::Use use = table_.use(serial);
      if (use) {
        ASSERT_EQ(use->serial(), serial);
      }
      return;
    }
    CountingSession* owner = nullptr;
    const std::byte* storage = nullptr;
    if (const Table::Use use = table_.use_current()) {
      owner = use.get();
      storage = use->engine().allocate();
      latest.store(use->serial());
      ++uses;
    }
    if (owner == nullptr) return;
    ASSERT_EQ(table_.owner_of(storage), owner);  // the storage keeps it
    const Table::Use use = table_.use(*owner);
    ASSERT_NE(use->serial(), 0u);
    use->engine().free();
    ++storages;
  };
  in_threads(3, work, [&] {
    int opened = 0;
    while (opened < kRounds || storages.load() < 100) {
      if (CountingSession* session = open()) {
        ++opened;
        table_.set_current(session);
        while (opened % 64 == 0 && uses.load() == 0) std::this_thread::yield();
        table_.clear_current();
      }
      table_.retire();
    }
  });
  table_.retire();
  EXPECT_EQ(table_.count(), 0u);
  EXPECT_EQ(CountingSession::alive, 0);
}

// A tensor that outlives its limit stays accessible whatever happens to later limits.
TEST_F(Sessions, AStorageOfAClosedOneIsFoundWhileOthersAreOpenedAndClosed) {
  CountingSession* closed = open();
  const std::byte* storage = closed->engine().allocate();
  std::atomic<uint64_t> asked{0}, lost{0};
  const auto ask = [&](int) {
    lost += table_.owner_of(storage) != closed;
    ++asked;
  };
  in_threads(2, ask, [&] {
    for (int i = 0; i < kRounds || asked.load() < 1000; ++i) {
      table_.set_current(open());
      table_.clear_current();
      table_.retire();
    }
  });
  EXPECT_EQ(lost.load(), 0u) << "of " << asked.load();
}

}  // namespace
}  // namespace bottomless
