#include "engine/budget.h"

#include <algorithm>

namespace bottomless {

Budget::Budget(Bytes limit, Bytes fixed, Heap& heap, const StorageTable& table)
    : limit_(limit),
      fixed_(fixed),
      charge_step_(std::max<Bytes>(limit / 256, 64_KiB)),
      heap_(heap),
      table_(table) {
  records_ = overhead();
  fit_heap();
  note_peak();
}

void Budget::discharge(Bytes bytes) noexcept {
  slack_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

Bytes Budget::take_slack(Bytes bytes) noexcept {
  int64_t slack = slack_.load(std::memory_order_relaxed);
  int64_t taken = 0;
  do {
    taken = std::min(slack, static_cast<int64_t>(bytes));
  } while (!slack_.compare_exchange_weak(slack, slack - taken, std::memory_order_relaxed));
  return static_cast<Bytes>(taken);
}

Bytes Budget::charged() const {
  const auto slack = static_cast<Bytes>(slack_.load(std::memory_order_relaxed));
  return charges_ - std::min(slack, charges_);
}

Bytes Budget::overhead(Bytes more_records) const {
  // Rounded up to steps of 64 KiB, so that the heap's budget does not change with every allocation.
  const Bytes records = table_.record_bytes() + more_records;
  return fixed_ + (records + 64_KiB) / 64_KiB * 64_KiB;
}

Budget::Reservation Budget::missing_for(Bytes charge, Bytes more_records) const {
  const Bytes wanted = overhead(more_records);
  return {.records = wanted - std::min(wanted, records_),
          .charges = (charge + charge_step_ - 1) / charge_step_ * charge_step_};
}

bool Budget::try_reserve(const Reservation& more, Bytes charge) {
  if (heap_.in_use() + more.total() > heap_.budget()) return false;
  records_ += more.records;
  charges_ += more.charges;
  fit_heap();
  discharge(more.charges - charge);
  note_peak();
  return true;
}

bool Budget::relax(Bytes keep) {
  const Bytes before = reserved();
  if (overhead() + keep < records_) records_ = overhead();
  int64_t slack = slack_.load(std::memory_order_relaxed);
  while (slack > static_cast<int64_t>(keep)) {
    const Bytes spare = std::min(static_cast<Bytes>(slack) - keep, charges_);
    if (!slack_.compare_exchange_weak(slack, slack - static_cast<int64_t>(spare),
                                      std::memory_order_relaxed)) {
      continue;
    }
    charges_ -= spare;
    break;
  }
  if (reserved() == before) return false;
  fit_heap();
  return true;
}

void Budget::fit_heap() { heap_.set_budget(limit_ - std::min(limit_, reserved())); }

void Budget::note_peak() { peak_ = std::max(peak_, heap_.committed() + overhead() + charged()); }

// Whole MiB, upwards: what is said is typed in again. And more than what is missing now: most of what is reserved is for
// small tensors, of which there will be more (states, where the first step has only gradients).
Bytes Budget::advised_limit(Bytes least) const {
  return (least + reserved() / 2 + least / 16 + 1_MiB - 1) / 1_MiB * 1_MiB;
}

}  // namespace bottomless
