// What the ranks need of a network: one ordered stream of bytes from each rank to each other.
// Thread-safety: for each peer one thread may send and one may receive at a time; close() from any thread.
// Lifetime: no call is under way when it is destroyed.
#pragma once
#include <bottomless/result.h>

#include <cstddef>
#include <span>

namespace bottomless {

class Transport {
 public:
  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  // Returns when the peer has taken all of it. Fails when the peer has ended, or after close().
  virtual Result<void> send(int to, std::span<const std::byte> bytes) = 0;
  // Takes exactly what one send() of the peer gave; the sizes must be equal.
  virtual Result<void> receive(int from, std::span<std::byte> into) = 0;
  // Ends every call under way, and all to come, with an error.
  virtual void close() = 0;
};

}  // namespace bottomless
