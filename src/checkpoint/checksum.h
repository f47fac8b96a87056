// The checksum of a tensor's bytes: XXH3 of 64 bits with seed 0. It finds damage, not forgery.
// Thread-safety: use one object from one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace bottomless {

class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept = default;
  Checksum& operator=(Checksum&&) noexcept = default;
  ~Checksum() = default;

  void add(std::span<const std::byte> bytes);
  uint64_t value() const;  // of all that was added, in that order

  static uint64_t of(std::string_view text);

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

// As it stands in files: 16 hexadecimal digits, lower case.
std::string hexadecimal(uint64_t number);
std::optional<uint64_t> parse_hexadecimal(std::string_view digits);

}  // namespace bottomless
