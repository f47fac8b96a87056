// The kernel does not fault on memory that is absent, as a program does: a system call that is given
// such a buffer fails with EFAULT. So calls of libc that move data to or from a buffer are
// redirected here: what they are about to touch is pinned for as long as they last. Needs no
// privilege. Not seen: system calls that a program makes without libc, and calls inside libc.
// Signal handlers may call what they may call of libc on buffers of their own: until it is known
// that a buffer is ours there is no lock and no allocation. New libraries are therefore looked for
// where they are loaded and at operators, never in a redirected call that moves data.
// Thread-safety: every function from any thread, but cover_system_calls() from one at a time.
#pragma once
#include <bottomless/bytes.h>
#include <bottomless/result.h>
#include <sys/uio.h>

#include <atomic>
#include <memory>
#include <span>

#include "base/access.h"
#include "os/imports.h"

namespace bottomless {

// Who keeps memory within a limit, as the redirected calls see it.
// Thread-safety: every member from any thread.
// Lifetime: that of the memory it owns.
class BufferOwner {
 public:
  // Keeps those of the buffers that are its own in memory until what it returns is destroyed.
  virtual Result<std::shared_ptr<void>> hold(std::span<const iovec> buffers, Access access) = 0;
  virtual Bytes limit() const = 0;

 protected:
  ~BufferOwner() = default;
};

struct SystemCallHooks {
  // Whose the memory at an address is; null: nobody's. Must be async-signal-safe.
  BufferOwner* (*owner_of)(const void* address) = nullptr;
  // A forked child has what its parent redirected, and looks for no more. Likewise.
  bool (*in_forked_child)() = nullptr;
};

// Redirects the calls of every library in the process, and from then on of those loaded later;
// `others` are redirected beside them. Hooks and others are those of the first call.
void cover_system_calls(const SystemCallHooks& hooks, std::span<const Redirection> others);

namespace detail {
// Above zero for a while after a library was loaded: its calls are to be redirected as well.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
inline std::atomic<int> new_libraries{0};
void cover_new_libraries();
}  // namespace detail

// To be called now and then, not in a signal handler; costs next to nothing while no library was
// loaded.
inline void notice_new_libraries() {
  if (detail::new_libraries.load(std::memory_order_relaxed) > 0) detail::cover_new_libraries();
}

}  // namespace bottomless
