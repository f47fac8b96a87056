// Remembers what short words became, so that a frequent word is merged once. Of fixed size: a word that falls into the
// place of another replaces it, and one that is too long is not kept.
// Thread-safety: any thread; a thread that would have to wait for another goes without.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace bottomless::text {

class WordCache {
 public:
  WordCache();

  // Appends the ids of `word`, if it is there.
  bool find(std::string_view word, std::vector<int32_t>& ids) const;
  void keep(std::string_view word, std::span<const int32_t> ids) const;

 private:
  static constexpr size_t kEntries = size_t{1} << 14;
  static constexpr size_t kLocks = 64;

  // Two cache lines: 2 MiB in all.
  struct Entry {
    uint8_t word_bytes = 0;  // 0: empty
    uint8_t id_count = 0;
    std::array<char, 62> word;
    std::array<int32_t, 16> ids;
  };
  static_assert(sizeof(Entry) == 128);

  static size_t place_of(std::string_view word);

  std::unique_ptr<std::array<Entry, kEntries>> entries_;  // entry i is guarded by lock i % kLocks
  std::unique_ptr<std::array<std::mutex, kLocks>> locks_;
};

}  // namespace bottomless::text
