#include "torch/session_table.h"

#include "base/check.h"

namespace bottomless {

// Between the reads of begin and end another session may have taken the entry; then its begin has
// changed before its end did, and the second read of begin, which comes after that of the end,
// tells.
bool SessionTable::Entry::contains(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const uintptr_t from = begin.load(std::memory_order_acquire);
  return from != 0 && at >= from && at < end.load(std::memory_order_acquire) &&
         begin.load(std::memory_order_acquire) == from;
}

Session* SessionTable::owner_of(const void* address) const {
  const Entry* likely = current_.load(std::memory_order_acquire);
  if (likely != nullptr && likely->contains(address))
    return likely->session.load(std::memory_order_acquire);
  if (count() == (likely != nullptr ? 1 : 0)) return nullptr;
  for (const Entry& entry : entries_) {
    if (entry.contains(address)) return entry.session.load(std::memory_order_acquire);
  }
  return nullptr;
}

// Counts itself first and looks again then, while clear_current() clears first and retire() looks at
// the count then: in the one order that all sequentially consistent operations have, one of them
// sees the other.
SessionUse SessionTable::use_current() {
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

SessionUse SessionTable::use(Session& session) {
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
SessionUse SessionTable::use(uint64_t serial) {
  for (Entry& entry : entries_) {
    if (entry.serial.load(std::memory_order_acquire) != serial) continue;
    entry.users.fetch_add(1, std::memory_order_seq_cst);
    if (entry.serial.load(std::memory_order_seq_cst) == serial)
      return {entry.session.load(std::memory_order_acquire), &entry.users};
    entry.users.fetch_sub(1, std::memory_order_release);
  }
  return {};
}

bool SessionTable::is_current(const Session* session) const {
  const Entry* entry = current_.load(std::memory_order_acquire);
  return entry != nullptr && entry->session.load(std::memory_order_acquire) == session;
}

Bytes SessionTable::current_limit() const {
  const Entry* entry = current_.load(std::memory_order_acquire);
  return entry == nullptr ? ~Bytes{0} : entry->limit.load(std::memory_order_relaxed);
}

Session* SessionTable::publish(std::unique_ptr<Session> session) {
  for (Entry& entry : entries_) {
    if (entry.owned != nullptr) continue;
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

void SessionTable::set_current(Session* session) {
  for (Entry& entry : entries_) {
    if (entry.owned.get() == session) current_.store(&entry, std::memory_order_seq_cst);
  }
}

void SessionTable::clear_current() { current_.store(nullptr, std::memory_order_seq_cst); }

void SessionTable::retire() {
  for (Entry& entry : entries_) {
    if (entry.owned == nullptr || &entry == current_.load(std::memory_order_relaxed)) continue;
    // First, nobody who found it current is left: no storage comes to it any more.
    if (entry.users.load(std::memory_order_seq_cst) > 0) continue;
    Engine& engine = entry.owned->engine();
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
