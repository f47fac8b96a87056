#include "support/faulty_transfers.h"

#include <algorithm>
#include <cerrno>

namespace bottomless {
namespace {

constexpr uint64_t kSector = 4096;
constexpr uint64_t kRagged = 1000;

}  // namespace

void FaultyTransfers::start(const Transfer& transfer) {
  const uint64_t index = faults_.started.fetch_add(1);
  if (faults_.fault == Fault::none || index < faults_.at || index >= faults_.at + faults_.times) {
    real_->start(transfer);
    return;
  }
  faults_.fired.fetch_add(1);
  const uint64_t half = transfer.memory.size() / 2 / kSector * kSector;
  switch (faults_.fault) {
    case Fault::none:
      break;
    case Fault::io_error:
      injected_.push_back({transfer.tag, -EIO});
      break;
    case Fault::no_space:
      injected_.push_back({transfer.tag, -ENOSPC});
      break;
    case Fault::again:
      injected_.push_back({transfer.tag, -EAGAIN});
      break;
    case Fault::interrupted:
      injected_.push_back({transfer.tag, -EINTR});
      break;
    case Fault::short_transfer:
      start_partly(transfer, half, half > 0 ? half : transfer.memory.size() / 2);
      break;
    case Fault::ragged_transfer:
      start_partly(transfer, half, std::min<uint64_t>(half + kRagged, transfer.memory.size() - 1));
      break;
    case Fault::nothing_moved:
      injected_.push_back({transfer.tag, 0});
      break;
    case Fault::corrupt:
      if (transfer.direction == Direction::read) corrupted_[transfer.tag] = transfer;
      real_->start(transfer);
      break;
    case Fault::hang:
      hung_.push_back(transfer);
      faults_.hanging = real_.get();
      start_released();
      break;
  }
}

void Faults::release() {
  released = true;
  if (Transfers* transfers = hanging.load()) transfers->wake();
}

void FaultyTransfers::start_released() {
  if (!faults_.released) return;
  for (const Transfer& transfer : hung_) real_->start(transfer);
  hung_.clear();
}

void FaultyTransfers::start_partly(const Transfer& transfer, uint64_t really, uint64_t reported) {
  if (really == 0) {
    injected_.push_back({transfer.tag, static_cast<int64_t>(reported)});
    return;
  }
  Transfer part = transfer;
  part.memory = transfer.memory.first(really);
  reported_[transfer.tag] = static_cast<int64_t>(reported - really);
  real_->start(part);
}

void FaultyTransfers::wait(std::vector<Moved>& results) {
  if (!injected_.empty()) {
    results.insert(results.end(), injected_.begin(), injected_.end());
    injected_.clear();
    return;
  }
  const size_t before = results.size();
  start_released();
  real_->wait(results);
  start_released();
  for (size_t i = before; i < results.size(); ++i) {
    if (const auto found = corrupted_.find(results[i].tag); found != corrupted_.end()) {
      const auto moved = static_cast<size_t>(std::max<int64_t>(results[i].result, 0));
      if (moved > 0) found->second.memory[moved / 3] ^= std::byte{0x04};
      corrupted_.erase(found);
    }
    const auto more = reported_.find(results[i].tag);
    if (more == reported_.end()) continue;
    if (results[i].result >= 0) results[i].result += more->second;
    reported_.erase(more);
  }
}

}  // namespace bottomless
