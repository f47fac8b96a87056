// One reserved range of addresses, inaccessible until frames are moved under parts of it.
// Reserving costs no memory and counts against no limit but RLIMIT_AS. Because the range is ours
// for good, no other thread's mapping can slip into a hole while a frame moves.
// Thread-safety: const members from any thread; the rest under the owner's lock.
// Lifetime: unmaps the range at the end.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>

#include <cstddef>

#include "base/access.h"

namespace bottomless {

class AddressSpace {
 public:
  static Result<AddressSpace> reserve(Bytes bytes, Bytes alignment);
  AddressSpace(AddressSpace&& other) noexcept;
  AddressSpace& operator=(AddressSpace&& other) noexcept;
  ~AddressSpace();

  std::byte* base() const noexcept { return base_; }
  Bytes bytes() const noexcept { return bytes_; }
  bool contains(const void* address) const noexcept {
    const auto* at = static_cast<const std::byte*>(address);
    return at >= base_ && at < base_ + bytes_;
  }

  // Fresh zeroed memory at `at`, or an error when the kernel refuses (RLIMIT_DATA, for example).
  Result<void> create(std::byte* at, Bytes bytes, bool huge_pages);
  // Moves the memory at `from` to `to`, which becomes inaccessible ground behind it. Nothing is
  // copied.
  void move(std::byte* from, std::byte* to, Bytes bytes);
  // Moves without restoring the ground at `from`; the caller must blank() it afterwards.
  void move_leaving_ground(std::byte* from, std::byte* to, Bytes bytes);
  // Makes the range inaccessible ground again, giving back whatever memory lay there.
  void blank(std::byte* at, Bytes bytes);
  void protect(std::byte* at, Bytes bytes, Access access);

  // For a forked child, by whom no frame can be spared: memory outside the range, then moved into it.
  // Null or false when the kernel refuses.
  static std::byte* create_outside(Bytes bytes) noexcept;
  bool move_in(std::byte* outside, std::byte* to, Bytes bytes) noexcept;

 private:
  AddressSpace(std::byte* base, Bytes bytes) : base_(base), bytes_(bytes) {}

  std::byte* base_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace bottomless
