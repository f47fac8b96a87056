#include "memory/address_space.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/errno_error.h"

namespace bottomless {
namespace {

constexpr int kGround = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

int protection(Access access) {
  switch (access) {
    case Access::none:
      return PROT_NONE;
    case Access::read:
      return PROT_READ;
    case Access::write:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

}  // namespace

Result<AddressSpace> AddressSpace::reserve(Bytes bytes, Bytes alignment) {
  void* raw = mmap(nullptr, bytes + alignment, PROT_NONE, kGround, -1, 0);
  if (raw == MAP_FAILED) {
    return errno_error(errno, "reserve " + format_bytes(bytes) + " of addresses",
                       "raise the address-space limit (ulimit -v) or remove it");
  }
  auto* start = static_cast<std::byte*>(raw);
  const auto misaligned = reinterpret_cast<uintptr_t>(start) % alignment;
  const Bytes head = misaligned == 0 ? 0 : alignment - misaligned;
  if (head > 0) munmap(start, head);
  munmap(start + head + bytes, alignment - head);
  return AddressSpace(start + head, bytes);
}

AddressSpace::AddressSpace(AddressSpace&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AddressSpace& AddressSpace::operator=(AddressSpace&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AddressSpace::~AddressSpace() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

Result<void> AddressSpace::create(std::byte* at, Bytes bytes, bool huge_pages) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, kGround | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return errno_error(errno, "create a frame of " + format_bytes(bytes),
                       "the kernel's own limits leave less than was granted: lower --memory, or "
                       "raise ulimit -d and "
                       "vm.max_map_count");
  }
  // Without huge pages the advice must say so: a kernel set to "always" would back a half-used
  // range with whole ones.
  madvise(at, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return {};
}

void AddressSpace::move_leaving_ground(std::byte* from, std::byte* to, Bytes bytes) {
  const void* moved =
      mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to);
  BOTTOMLESS_CHECK(moved == to,
                   "mremap refused to move a frame (vm.max_map_count or RLIMIT_DATA reached?)");
}

void AddressSpace::move(std::byte* from, std::byte* to, Bytes bytes) {
  move_leaving_ground(from, to, bytes);
  blank(from, bytes);
}

void AddressSpace::blank(std::byte* at, Bytes bytes) {
  const void* ground = mmap(at, bytes, PROT_NONE, kGround | MAP_FIXED, -1, 0);
  BOTTOMLESS_CHECK(ground == at, "mmap refused to blank a range (vm.max_map_count reached?)");
}

std::byte* AddressSpace::create_outside(Bytes bytes) noexcept {
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kGround, -1, 0);
  return made == MAP_FAILED ? nullptr : static_cast<std::byte*>(made);
}

bool AddressSpace::move_in(std::byte* outside, std::byte* to, Bytes bytes) noexcept {
  return mremap(outside, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
}

void AddressSpace::protect(std::byte* at, Bytes bytes, Access access) {
  BOTTOMLESS_CHECK(mprotect(at, bytes, protection(access)) == 0,
                   "mprotect refused (vm.max_map_count or RLIMIT_DATA reached?)");
}

}  // namespace bottomless
