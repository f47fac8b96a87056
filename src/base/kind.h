// What a storage is for, and how many bytes of each kind are held: "who holds 40 GiB" is one
// call.
// Thread-safety: none; the owner locks.
#pragma once
#include <bottomless/bytes.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace bottomless {

enum class Kind : uint8_t { parameter, gradient, state, activation, other };
inline constexpr size_t kKinds = 5;
inline constexpr std::array<std::string_view, kKinds> kKindNames{"parameter", "gradient", "state",
                                                                 "activation", "other"};

class KindBytes {
 public:
  void add(Kind kind, Bytes bytes) { bytes_[static_cast<size_t>(kind)] += bytes; }
  void remove(Kind kind, Bytes bytes) { bytes_[static_cast<size_t>(kind)] -= bytes; }
  Bytes of(Kind kind) const { return bytes_[static_cast<size_t>(kind)]; }

 private:
  std::array<Bytes, kKinds> bytes_{};
};

}  // namespace bottomless
