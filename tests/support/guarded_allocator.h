// An allocator whose memory ends where an inaccessible page begins: whoever reads or writes past the end faults, in every
// build and for every instruction set.
// Thread-safety: free functions without state.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>

namespace bottomless {

template <class T>
class GuardedAllocator {
 public:
  using value_type = T;

  GuardedAllocator() = default;
  template <class U>
  GuardedAllocator(const GuardedAllocator<U>&) {}  // NOLINT(google-explicit-constructor): rebinding

  T* allocate(size_t count) {
    const size_t mapped = mapped_bytes(count);
    void* const at = ::mmap(nullptr, mapped + kPage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || ::mprotect(static_cast<std::byte*>(at) + mapped, kPage, PROT_NONE) != 0)
      throw std::bad_alloc();
    return reinterpret_cast<T*>(static_cast<std::byte*>(at) + mapped - count * sizeof(T));
  }
  void deallocate(T* at, size_t count) noexcept {
    const size_t mapped = mapped_bytes(count);
    ::munmap(reinterpret_cast<std::byte*>(at) + count * sizeof(T) - mapped, mapped + kPage);
  }

  bool operator==(const GuardedAllocator&) const = default;

 private:
  static constexpr size_t kPage = 4096;
  static size_t mapped_bytes(size_t count) {
    return (count * sizeof(T) + kPage - 1) / kPage * kPage;
  }
};

}  // namespace bottomless
