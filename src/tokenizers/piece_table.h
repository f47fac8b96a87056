// Finds the number of a piece by its text: a flat table, as most of the time of merging is spent in looking up pairs.
// Thread-safety: const use from any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace bottomless::text {

class PieceTable {
 public:
  static constexpr int32_t kNone = -1;

  // `text_of(id)` is the text of a piece that was inserted. False: there is one with this text already.
  template <class TextOf>
  bool insert(std::string_view text, int32_t id, TextOf text_of) {
    if (find(text, text_of) != kNone) return false;
    if (2 * (hashes_.size() + 1) > slots_.size()) grow();
    place({tag_of(hash_of(text)), id}, hash_of(text));
    hashes_.push_back({hash_of(text), id});
    return true;
  }

  template <class TextOf>
  int32_t find(std::string_view text, TextOf text_of) const {
    if (slots_.empty()) return kNone;
    const uint64_t hash = hash_of(text);
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
      const Slot& slot = slots_[at];
      if (slot.id == kNone) return kNone;
      if (slot.tag == tag_of(hash) && text_of(slot.id) == text) return slot.id;
    }
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t id = kNone;
  };
  struct Hashed {
    uint64_t hash;
    int32_t id;
  };

  static uint32_t tag_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }

  static uint64_t hash_of(std::string_view text) {
    constexpr uint64_t kOdd = 0x9E3779B97F4A7C15u;
    uint64_t hash = text.size() * kOdd;
    for (;;) {
      uint64_t word = 0;
      const size_t bytes = text.size() < sizeof word ? text.size() : sizeof word;
      std::memcpy(&word, text.data(), bytes);
      hash = (hash ^ word) * kOdd;
      hash ^= hash >> 29;
      if (text.size() <= sizeof word) return hash * kOdd ^ hash >> 32;
      text.remove_prefix(sizeof word);
    }
  }

  void place(Slot slot, uint64_t hash) {
    const size_t mask = slots_.size() - 1;
    size_t at = hash & mask;
    while (slots_[at].id != kNone) at = (at + 1) & mask;
    slots_[at] = slot;
  }

  void grow() {
    slots_.assign(slots_.empty() ? 64 : 2 * slots_.size(), {});
    for (const Hashed& each : hashes_) place({tag_of(each.hash), each.id}, each.hash);
  }

  std::vector<Slot> slots_;  // a power of two, at most half of them taken
  std::vector<Hashed> hashes_;
};

}  // namespace bottomless::text
