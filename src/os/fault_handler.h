// The safety net under everything that touches a tensor's memory without an operator: numpy, a
// compiled kernel, a raw pointer, another thread. An access to an absent block, or a write to a
// clean one, raises SIGSEGV; the handler hands it to a service thread, which may take locks and
// wait for a disk, and goes on when the block is there. While a service thread waits for room that
// operators hold, another one listens: the access that it waits for may come from such an operator.
// Faults elsewhere go to whoever handled SIGSEGV before, or asked to since.
// Thread-safety: start() once; the rest from any thread.
// Lifetime: must live as long as the process.
#pragma once
#include <bottomless/result.h>
#include <signal.h>

#include <atomic>
#include <functional>
#include <optional>
#include <vector>

#include "base/access.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"

namespace bottomless {

class FaultHandler {
 public:
  // What a thread was doing when it faulted; the operation lives until the fault has been answered.
  struct Origin {
    const void* operation = nullptr;  // what it is, whoever serves the fault knows
    bool in_parallel_region = false;
  };
  // Called in signal context: is this address one to serve? Must be async-signal-safe.
  using Owns = bool (*)(const void* address);
  // Called in signal context for an address that is ours: whether that has served it, or none when
  // it is for the service thread to do.
  using ServeHere = std::optional<bool> (*)(const void* address, Access access);
  // Called in signal context for an address that is for the service thread.
  using OriginHere = Origin (*)();
  // Called on a service thread: make it accessible; false if it is not ours after all.
  using Serve =
      std::function<Result<bool>(const void* address, Access access, const Origin& origin)>;

  // Called on a service thread before all else.
  using Prepare = void (*)();

  struct Hooks {
    Owns owns = nullptr;
    ServeHere serve_here = nullptr;
    OriginHere origin_here = nullptr;
    Serve serve;
    Prepare prepare = nullptr;
  };
  Result<void> start(Hooks hooks);

  // To be called by whoever is about to wait for room, on whatever thread.
  static void before_waiting();

  // In the place of libc's own, see system_calls.h: whoever installs a handler for SIGSEGV after us
  // gets the faults that are not ours instead of all of them.
  static int sigaction_of_others(int signal, const struct sigaction* action,
                                 struct sigaction* before) noexcept;
  static sighandler_t signal_of_others(int signal, sighandler_t handler) noexcept;

 private:
  void run();
  Result<void> start_thread();

  Serve serve_;
  Prepare prepare_ = nullptr;
  UniqueFd requests_in_;
  UniqueFd requests_out_;
  std::atomic<int> listening_{0};  // service threads that wait for a request, or begin to
  Mutex mutex_;
  // At most as many as accesses ever waited for room at once, and one.
  std::vector<Thread> threads_ BOTTOMLESS_GUARDED_BY(mutex_);
};

}  // namespace bottomless
