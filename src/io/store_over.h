// A store over another one, which it passes everything on to; what is derived from it changes what it is about.
// Thread-safety: see Store.
// Lifetime: owns the store below. Transfers below call back until that is gone, so a derived class whose members they use
// ends it first, in its own destructor.
#pragma once
#include <memory>
#include <utility>

#include "io/store.h"

namespace bottomless {

class StoreOver : public Store {
 public:
  Result<Extent> allocate(Bytes bytes) override { return below_->allocate(bytes); }
  void free(const Extent& extent) override { below_->free(extent); }
  void read(const Extent& extent, Pieces into, Priority priority, Done done) override {
    below_->read(extent, std::move(into), priority, std::move(done));
  }
  void write(const Extent& extent, Pieces from, Priority priority, Done done) override {
    below_->write(extent, std::move(from), priority, std::move(done));
  }
  void raise_priority(const Extent& extent) override { below_->raise_priority(extent); }
  std::optional<Error> overdue(std::chrono::nanoseconds timeout) override {
    return below_->overdue(timeout);
  }
  bool read_in_child(const Extent& extent, std::span<std::byte> into) noexcept override {
    return below_->read_in_child(extent, into);
  }

 protected:
  explicit StoreOver(std::unique_ptr<Store> below) : below_(std::move(below)) {}
  void end_below() { below_.reset(); }

  static Bytes total(const Pieces& pieces) {
    Bytes bytes = 0;
    for (const std::span<std::byte> piece : pieces) bytes += piece.size();
    return bytes;
  }

 private:
  std::unique_ptr<Store> below_;
};

}  // namespace bottomless
