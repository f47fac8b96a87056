// The kernel does not fault on memory that is away, as a program does: a system call that is given
// such a buffer fails with EFAULT. So calls of libc that move data to or from a buffer are
// redirected here: what they are about to touch is pinned for as long as they last. Needs no
// privilege. Not seen: system calls that a program makes without libc, and calls inside libc.
// Signal handlers may call what they may call of libc on buffers of their own: until it is known
// that a buffer is ours there is no lock and no allocation. New libraries are therefore looked for
// where they are loaded and at operators, never in a redirected call that moves data.
// Thread-safety: every function from any thread.
#pragma once
#include <atomic>

namespace bottomless {

// Redirects the calls of every library in the process, and from then on of those loaded later.
void cover_system_calls();

namespace detail {
// Above zero for a while after a library was loaded: its calls are to be redirected as well.
inline std::atomic<int> new_libraries{0};
void cover_new_libraries();
}  // namespace detail

// To be called now and then, not in a signal handler; costs next to nothing while no library was
// loaded.
inline void notice_new_libraries() {
  if (detail::new_libraries.load(std::memory_order_relaxed) > 0) detail::cover_new_libraries();
}

}  // namespace bottomless
