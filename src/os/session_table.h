// Finds sessions for operators, allocations and signal handlers, which take no lock, and says when
// one may end: no thread is amid something that needs it. A storage that lives keeps its session;
// who holds a session for any other reason holds a SessionUse.
// Thread-safety: publish(), retire(), each(), set_current() and clear_current() under the owner's
// lock; the rest from any thread, owner_of() also in a signal handler.
// Lifetime: lives as long as the process.
#pragma once
#include <bottomless/bytes.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"

namespace bottomless {

template <class Session>
class BasicSessionTable;

// While it lives, the session does not end. May be empty.
template <class Session>
class BasicSessionUse {
 public:
  BasicSessionUse() = default;
  BasicSessionUse(BasicSessionUse&& other) noexcept
      : session_(std::exchange(other.session_, nullptr)), users_(other.users_) {}
  BasicSessionUse& operator=(BasicSessionUse&&) = delete;
  ~BasicSessionUse() {
    // Release: whoever ends the session sees all that was done with it.
    if (session_ != nullptr) users_->fetch_sub(1, std::memory_order_release);
  }

  explicit operator bool() const { return session_ != nullptr; }
  Session* get() const { return session_; }
  Session* operator->() const { return session_; }
  Session& operator*() const { return *session_; }

 private:
  friend class BasicSessionTable<Session>;
  BasicSessionUse(Session* session, std::atomic<uint32_t>* users)
      : session_(session), users_(users) {}
  Session* session_ = nullptr;
  std::atomic<uint32_t>* users_ = nullptr;
};

// Of a Session it wants serial(), memory() and engine(), and of that addresses(), wait_for_io() and live_storages(): see
// torch/runtime/session.h and engine/engine.h.
template <class Session>
class BasicSessionTable {
 public:
  using Use = BasicSessionUse<Session>;
  static constexpr size_t kMost = 16;  // closed ones included while they have living storages

  // Sessions that storages may be managed by.
  size_t count() const { return count_.load(std::memory_order_acquire); }
  // The session of the storage at `address`, or null. Valid as long as the storage is.
  Session* owner_of(const void* address) const;
  // The session that new storages go to; empty when there is none.
  Use use_current();
  // Of a session that a living storage keeps, or another use.
  Use use(Session& session);
  // Of the session with that serial number; empty when it has ended.
  Use use(uint64_t serial);
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
  // Entries from the first on that ever held a session. Never fewer: whoever asks for a storage of one session is not
  // misled by the end of another.
  std::atomic<size_t> taken_{0};
};

// Between the reads of begin and end another session may have taken the entry; then its begin has
// changed before its end did, and the second read of begin, which comes after that of the end,
// tells.
template <class Session>
bool BasicSessionTable<Session>::Entry::contains(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const uintptr_t from = begin.load(std::memory_order_acquire);
  return from != 0 && at >= from && at < end.load(std::memory_order_acquire) &&
         begin.load(std::memory_order_acquire) == from;
}

template <class Session>
Session* BasicSessionTable<Session>::owner_of(const void* address) const {
  const Entry* likely = current_.load(std::memory_order_acquire);
  if (likely != nullptr && likely->contains(address))
    return likely->session.load(std::memory_order_acquire);
  const size_t taken = taken_.load(std::memory_order_acquire);
  for (size_t i = 0; i < taken; ++i) {
    if (entries_[i].contains(address)) return entries_[i].session.load(std::memory_order_acquire);
  }
  return nullptr;
}

// Counts itself first and looks again then, while clear_current() clears first and retire() looks at
// the count then: in the one order that all sequentially consistent operations have, one of them
// sees the other.
template <class Session>
BasicSessionUse<Session> BasicSessionTable<Session>::use_current() {
  for (;;) {
    Entry* entry = current_.load(std::memory_order_acquire);
    if (entry == nullptr) return {};
    entry->users.fetch_add(1, std::memory_order_seq_cst);
    if (current_.load(std::memory_order_seq_cst) == entry) {
      return {entry->session.load(std::memory_order_acquire), &entry->users};
    }
    entry->users.fetch_sub(1, std::memory_order_release);
  }
}

template <class Session>
BasicSessionUse<Session> BasicSessionTable<Session>::use(Session& session) {
  for (Entry& entry : entries_) {
    if (entry.session.load(std::memory_order_acquire) != &session) continue;
    // Relaxed: what keeps the session until now orders it before all that retire() looks at.
    entry.users.fetch_add(1, std::memory_order_relaxed);
    return {&session, &entry.users};
  }
  BOTTOMLESS_CHECK(false, "a session is used that has ended");
  return {};
}

// Counts itself first and looks again then, as use_current() does; retire() takes the number away
// first and looks at the count then.
template <class Session>
BasicSessionUse<Session> BasicSessionTable<Session>::use(uint64_t serial) {
  for (Entry& entry : entries_) {
    if (entry.serial.load(std::memory_order_acquire) != serial) continue;
    entry.users.fetch_add(1, std::memory_order_seq_cst);
    if (entry.serial.load(std::memory_order_seq_cst) == serial)
      return {entry.session.load(std::memory_order_acquire), &entry.users};
    entry.users.fetch_sub(1, std::memory_order_release);
  }
  return {};
}

template <class Session>
bool BasicSessionTable<Session>::is_current(const Session* session) const {
  const Entry* entry = current_.load(std::memory_order_acquire);
  return entry != nullptr && entry->session.load(std::memory_order_acquire) == session;
}

template <class Session>
Bytes BasicSessionTable<Session>::current_limit() const {
  const Entry* entry = current_.load(std::memory_order_acquire);
  return entry == nullptr ? ~Bytes{0} : entry->limit.load(std::memory_order_relaxed);
}

template <class Session>
Session* BasicSessionTable<Session>::publish(std::unique_ptr<Session> session) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.owned != nullptr) continue;
    taken_.store(std::max(i + 1, taken_.load(std::memory_order_relaxed)),
                 std::memory_order_release);
    entry.owned = std::move(session);
    const auto addresses = entry.owned->engine().addresses();
    entry.limit.store(entry.owned->memory(), std::memory_order_relaxed);
    entry.session.store(entry.owned.get(), std::memory_order_release);
    entry.end.store(reinterpret_cast<uintptr_t>(addresses.data() + addresses.size()),
                    std::memory_order_release);
    entry.begin.store(reinterpret_cast<uintptr_t>(addresses.data()), std::memory_order_release);
    entry.serial.store(entry.owned->serial(), std::memory_order_release);
    count_.fetch_add(1, std::memory_order_acq_rel);
    return entry.owned.get();
  }
  return nullptr;
}

template <class Session>
void BasicSessionTable<Session>::set_current(Session* session) {
  for (Entry& entry : entries_) {
    if (entry.owned.get() == session) current_.store(&entry, std::memory_order_seq_cst);
  }
}

template <class Session>
void BasicSessionTable<Session>::clear_current() {
  current_.store(nullptr, std::memory_order_seq_cst);
}

template <class Session>
void BasicSessionTable<Session>::retire() {
  for (Entry& entry : entries_) {
    if (entry.owned == nullptr || &entry == current_.load(std::memory_order_relaxed)) continue;
    // First, nobody who found it current is left: no storage comes to it any more.
    if (entry.users.load(std::memory_order_seq_cst) > 0) continue;
    auto& engine = entry.owned->engine();
    engine.wait_for_io();
    // Then none is left: nobody can find it any more. Whoever freed the last may still be using it.
    if (engine.live_storages() > 0 || entry.users.load(std::memory_order_seq_cst) > 0) continue;
    const uint64_t serial = entry.serial.exchange(0, std::memory_order_seq_cst);
    if (entry.users.load(std::memory_order_seq_cst) > 0) {
      entry.serial.store(serial, std::memory_order_release);
      continue;
    }
    entry.begin.store(0, std::memory_order_release);
    entry.session.store(nullptr, std::memory_order_release);
    entry.owned.reset();
    count_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

}  // namespace bottomless
