// What the limit is divided into: the heap's frames, the engine's own records, and charges, which is memory of others that
// counts against the limit. Records and charges are reserved first; the heap's budget is what they leave.
// Thread-safety: take_slack() and discharge() from any thread; the rest under the engine's lock.
// Lifetime: the heap and the table must outlive it.
#pragma once
#include <bottomless/bytes.h>

#include <atomic>
#include <cstdint>

#include "engine/storage_table.h"
#include "memory/heap.h"

namespace bottomless {

class Budget {
 public:
  // `fixed`: what the owner takes of the limit for itself, whatever happens.
  Budget(Bytes limit, Bytes fixed, Heap& heap, const StorageTable& table);

  Bytes limit() const { return limit_; }
  Bytes charge_step() const { return charge_step_; }  // charges are reserved in multiples of it

  // Of what is reserved for charges and not in use: takes what there is, at most `bytes`.
  Bytes take_slack(Bytes bytes) noexcept;
  void discharge(Bytes bytes) noexcept;

  Bytes charged() const;
  Bytes overhead(Bytes more_records = 0) const;
  Bytes reserved() const { return records_ + charges_; }

  // What has to be reserved besides for a charge and for records to come.
  struct Reservation {
    Bytes records = 0;
    Bytes charges = 0;
    Bytes total() const { return records + charges; }
  };
  Reservation missing_for(Bytes charge, Bytes more_records) const;
  // Reserves it if the heap can do without it now; `charge` of it is in use at once.
  bool try_reserve(const Reservation& more, Bytes charge);
  // Gives back to the heap what charges and records no longer take, but for `keep` of each: what was just given up is often
  // wanted again. True if there was anything.
  bool relax(Bytes keep);

  void note_peak();
  Bytes peak() const { return peak_; }

  // The limit to ask for where `least` would do now.
  Bytes advised_limit(Bytes least) const;

 private:
  void fit_heap();

  const Bytes limit_;
  const Bytes fixed_;
  const Bytes charge_step_;
  Heap& heap_;
  const StorageTable& table_;
  Bytes records_ = 0;  // at least overhead()
  Bytes charges_ = 0;  // in use, and the slack
  Bytes peak_ = 0;
  // Reserved for charges and not in use: a charge it covers needs no lock. Relaxed order suffices: nothing is published
  // through it, only the sum must be exact.
  std::atomic<int64_t> slack_{0};
};

}  // namespace bottomless
