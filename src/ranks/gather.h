// The source of a sharded storage: each rank has a share of it, and a block is pulled from those who have parts of it, all
// at the same time. Where the ranks of a node keep a second set of shares, what has been gathered once comes from these.
// Thread-safety: see Source; renew() from one thread at a time.
// Lifetime: exchange and node shares outlive every fetch.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/source.h"
#include "ranks/exchange.h"
#include "ranks/layout.h"
#include "ranks/node_shares.h"

namespace bottomless {

struct Sharded {
  std::string name;  // for errors
  Exchange::Key key = 0;
  std::vector<Share> shares;  // by rank
  Element element = Element::bytes;
  Format format = Format::plain;
  NodeShares::Kept* within_node = nullptr;  // null: there is no second set
};

class Gather final : public Source {
 public:
  Gather(Exchange& exchange, Sharded sharded) : exchange_(exchange), sharded_(std::move(sharded)) {}

  void fetch(Bytes offset, Bytes bytes, Pieces into, Priority priority, Done done) override;
  void raise_priority(Bytes offset) override;

  // From now on this version is asked for.
  void renew(uint64_t version) { version_.store(version, std::memory_order_relaxed); }
  uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  const Sharded& sharded() const { return sharded_; }

 private:
  struct Fetch;
  enum class From { owners, node };

  void pull(const std::shared_ptr<Fetch>& fetch, From from, Priority priority);
  void ended(const std::shared_ptr<Fetch>& fetch, From from, Result<void> outcome);

  Exchange& exchange_;
  const Sharded sharded_;
  std::atomic<uint64_t> version_{0};  // nothing is published through it
  Mutex mutex_;
  std::map<Bytes, std::vector<uint64_t>> under_way_ BOTTOMLESS_GUARDED_BY(mutex_);  // by offset
};

}  // namespace bottomless
