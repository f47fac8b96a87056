// What a rank is at, for others who wait for it.
// Thread-safety: one at a time lives on the thread that its sharding is used from.
#pragma once
#include "torch/shard/sharding.h"

namespace bottomless {

class Sharding::Phase {
 public:
  Phase(Sharding& sharding, const char* what)
      : sharding_(sharding), before_(sharding.phase_.exchange(what, std::memory_order_relaxed)) {}
  ~Phase() { sharding_.phase_.store(before_, std::memory_order_relaxed); }
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;

 private:
  Sharding& sharding_;
  const char* before_;
};

}  // namespace bottomless
