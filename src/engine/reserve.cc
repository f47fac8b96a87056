// What is set aside of the limit besides the heap: charges, the engine's own records, and how much
// that leaves.
#include <algorithm>

#include "base/at_least.h"
#include "engine/engine.h"

namespace bottomless {

Result<void> Engine::charge(Bytes bytes, const Pins* pins, std::string_view who) {
  const Bytes taken = take_slack(bytes);
  if (taken == bytes) return {};
  MutexLock lock(mutex_);
  Result<void> aside = set_aside(bytes - taken, 0, pins, who);
  if (!aside.ok()) discharge(taken);
  return aside;
}

void Engine::discharge(Bytes bytes) noexcept {
  charge_slack_.fetch_add(static_cast<int64_t>(bytes), std::memory_order_relaxed);
}

// Takes what there is, at most `bytes`.
Bytes Engine::take_slack(Bytes bytes) noexcept {
  int64_t slack = charge_slack_.load(std::memory_order_relaxed);
  int64_t taken = 0;
  do {
    taken = std::min(slack, static_cast<int64_t>(bytes));
  } while (!charge_slack_.compare_exchange_weak(slack, slack - taken, std::memory_order_relaxed));
  return static_cast<Bytes>(taken);
}

Bytes Engine::charged() const {
  const auto slack = static_cast<Bytes>(charge_slack_.load(std::memory_order_relaxed));
  return charge_reserve_ - std::min(slack, charge_reserve_);
}

// Sets room aside for a charge and for records to come, waiting until the heap can do without it.
// Nobody may use either before: the limit would be exceeded while blocks are still leaving.
Result<void> Engine::set_aside(Bytes charge, Bytes records, const Pins* pins,
                               std::string_view who) {
  for (;;) {
    const Bytes wanted = overhead(records);
    const Bytes more_records = wanted - std::min(wanted, records_reserve_);
    const Bytes more_charges = (charge + charge_step_ - 1) / charge_step_ * charge_step_;
    const Bytes more = more_records + more_charges;
    if (more == 0) return {};
    if (more > heap_->budget()) {
      if (relax_reserves(0)) continue;
      return too_small(more, pins, who);
    }
    if (heap_->in_use() + more <= heap_->budget()) {
      records_reserve_ += more_records;
      charge_reserve_ += more_charges;
      fit_heap();
      discharge(more_charges - charge);
      note_peak();
      return {};
    }
    bool stepped_back = false;
    Result<void> room = wait_for_room(more, pins, Phase::allocating, who, stepped_back);
    if (!room.ok()) return room;
  }
}

// Gives back to the heap what charges and records no longer take, but for `keep` of each: what was
// just given up is often wanted again. True if there was anything.
bool Engine::relax_reserves(Bytes keep) {
  const Bytes before = records_reserve_ + charge_reserve_;
  if (overhead() + keep < records_reserve_) records_reserve_ = overhead();
  int64_t slack = charge_slack_.load(std::memory_order_relaxed);
  while (slack > static_cast<int64_t>(keep)) {
    const Bytes spare = std::min(static_cast<Bytes>(slack) - keep, charge_reserve_);
    if (!charge_slack_.compare_exchange_weak(slack, slack - static_cast<int64_t>(spare),
                                             std::memory_order_relaxed)) {
      continue;
    }
    charge_reserve_ -= spare;
    break;
  }
  if (records_reserve_ + charge_reserve_ == before) return false;
  fit_heap();
  return true;
}

void Engine::fit_heap() {
  const Bytes aside = records_reserve_ + charge_reserve_;
  heap_->set_budget(options_.limit - std::min(options_.limit, aside));
}

Bytes Engine::overhead(Bytes more_records) const {
  // Rounded up to steps of 64 KiB, so that the heap's budget does not change with every allocation.
  const Bytes records = live_blocks_ * sizeof(Block) + live_storages_ * sizeof(Storage) +
                        table_.capacity() * sizeof(Storage*) + more_records;
  return options_.fixed_overhead + planning_bytes_ + (records + 64_KiB) / 64_KiB * 64_KiB;
}

void Engine::note_peak() {
  const Bytes now = heap_->committed() + overhead() + charged();
  stats_.peak_bytes = std::max(stats_.peak_bytes, now);
}

Bytes Engine::pinned_by(const Pins* pins) const {
  if (pins == nullptr) return 0;
  std::vector<Block*> distinct = pins->blocks_;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  Bytes total = 0;
  for (const Block* block : distinct) total += footprint(*block);
  return total;
}

// Whole MiB, upwards: what is said is typed in again. And more than what is missing now: most of what is set aside are small
// tensors, of which there will be more (states, where the first step has only gradients).
Bytes Engine::advised_limit(Bytes least) const {
  const Bytes aside = records_reserve_ + charge_reserve_;
  return (least + aside / 2 + least / 16 + 1_MiB - 1) / 1_MiB * 1_MiB;
}

Error Engine::too_small(Bytes bytes, const Pins* pins, std::string_view who) const {
  const Bytes aside = records_reserve_ + charge_reserve_;
  const Bytes held = pinned_by(pins);
  const std::string small =
      options_.least_managed > 1
          ? ", of which those below " + format_bytes(options_.least_managed) + " never leave memory"
          : "";
  return {Code::no_memory, "run " + std::string(who) + ": it needs " + format_bytes(held + bytes) +
                               " at once besides " + format_bytes(aside) +
                               " for bookkeeping and small tensors" + small +
                               ", but the limit is " + format_bytes(options_.limit) +
                               " (--memory); raise it to at least " +
                               format_at_least(advised_limit(held + bytes + aside))};
}

}  // namespace bottomless
