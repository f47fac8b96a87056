// Page-aligned memory, as O_DIRECT wants it.
#pragma once
#include <bottomless/bytes.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace bottomless {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(Bytes bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(4_KiB, (bytes + 4_KiB - 1) / 4_KiB * 4_KiB))),
        bytes_(bytes) {}

  std::byte* data() { return data_.get(); }
  Bytes size() const { return bytes_; }
  std::byte& operator[](size_t i) { return data_.get()[i]; }
  std::span<std::byte> span() { return {data_.get(), bytes_}; }

  // Words that depend on their position, so that a piece in the wrong place shows. For sizes that are multiples of 8.
  void fill(uint64_t key) {
    auto* words = reinterpret_cast<uint64_t*>(data_.get());
    for (size_t i = 0; i < bytes_ / 8; ++i) words[i] = word(key, i);
  }
  // The offset of the first word that is not what fill(key) wrote, or size().
  Bytes mismatch(uint64_t key) const {
    const auto* words = reinterpret_cast<const uint64_t*>(data_.get());
    for (size_t i = 0; i < bytes_ / 8; ++i) {
      if (words[i] != word(key, i)) return i * 8;
    }
    return bytes_;
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  static uint64_t word(uint64_t key, size_t i) {
    return (key * 0x9E3779B97F4A7C15ull) ^ (i * 0xD6E8FEB86659FD93ull);
  }

  std::unique_ptr<std::byte, Free> data_;
  Bytes bytes_;
};

}  // namespace bottomless
