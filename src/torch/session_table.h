// Finds sessions for operators, allocations and signal handlers, which take no lock, and says when
// one may end: no thread is amid something that needs it. A storage that lives keeps its session;
// who holds a session for any other reason holds a SessionUse.
// Thread-safety: publish(), retire(), each(), set_current() and clear_current() under the owner's
// lock; the rest from any thread, owner_of() also in a signal handler.
// Lifetime: lives as long as the process.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "torch/session.h"

namespace bottomless {

// While it lives, the session does not end. May be empty.
class SessionUse {
 public:
  SessionUse() = default;
  SessionUse(SessionUse&& other) noexcept
      : session_(std::exchange(other.session_, nullptr)), users_(other.users_) {}
  SessionUse& operator=(SessionUse&&) = delete;
  ~SessionUse() {
    // Release: whoever ends the session sees all that was done with it.
    if (session_ != nullptr) users_->fetch_sub(1, std::memory_order_release);
  }

  explicit operator bool() const { return session_ != nullptr; }
  Session* get() const { return session_; }
  Session* operator->() const { return session_; }
  Session& operator*() const { return *session_; }

 private:
  friend class SessionTable;
  SessionUse(Session* session, std::atomic<uint32_t>* users) : session_(session), users_(users) {}
  Session* session_ = nullptr;
  std::atomic<uint32_t>* users_ = nullptr;
};

class SessionTable {
 public:
  static constexpr size_t kMost = 16;  // closed ones included while they have living storages

  // Sessions that storages may be managed by.
  size_t count() const { return count_.load(std::memory_order_acquire); }
  // The session of the storage at `address`, or null. Valid as long as the storage is.
  Session* owner_of(const void* address) const;
  // The session that new storages go to; empty when there is none.
  SessionUse use_current();
  // Of a session that a living storage keeps, or another use.
  SessionUse use(Session& session);
  // Of the session with that serial number; empty when it has ended.
  SessionUse use(uint64_t serial);
  bool has_current() const { return current_.load(std::memory_order_acquire) != nullptr; }
  bool is_current(const Session* session) const;
  // The limit that new storages will be under; without one, no number is larger.
  Bytes current_limit() const;

  // Null when there is no room for another one.
  Session* publish(std::unique_ptr<Session> session);
  void set_current(Session* session);
  void clear_current();
  // Ends the sessions that are not current, have no living storage, and are of no use to anyone.
  void retire();
  template <class Visit>
  void each(Visit visit) {
    for (Entry& entry : entries_) {
      if (entry.owned != nullptr) visit(*entry.owned);
    }
  }

 private:
  struct Entry {
    std::unique_ptr<Session> owned;  // under the owner's lock
    std::atomic<Session*> session{nullptr};
    std::atomic<uint64_t> serial{0};  // zero: nobody may begin to use it by its number
    std::atomic<Bytes> limit{0};
    // The addresses of its storages, so that nobody asks a session that may be ending for them.
    // The end is written first and the begin last: see contains().
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};
    std::atomic<uint32_t> users{0};

    bool contains(const void* address) const;
  };

  std::array<Entry, kMost> entries_;
  std::atomic<Entry*> current_{nullptr};
  std::atomic<size_t> count_{0};
};

}  // namespace bottomless
