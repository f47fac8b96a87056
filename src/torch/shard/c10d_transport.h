// The streams between ranks over torch.distributed: send and receive of a c10d backend (Gloo, MPI) that nobody else uses.
// Thread-safety, lifetime: see Transport.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_set>

#include "base/mutex.h"
#include "ranks/transport.h"

namespace bottomless {

class C10dTransport final : public Transport {
 public:
  explicit C10dTransport(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  int rank() const override { return backend_->getRank(); }
  int ranks() const override { return backend_->getSize(); }
  Result<void> send(int to, std::span<const std::byte> bytes) override;
  Result<void> receive(int from, std::span<std::byte> into) override;
  void close() override;

 private:
  template <class Start>
  Result<void> run(Start start);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  Mutex mutex_;
  bool closed_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  std::unordered_set<c10d::Work*> under_way_ BOTTOMLESS_GUARDED_BY(mutex_);
};

}  // namespace bottomless
