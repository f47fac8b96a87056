// The one owner, for the whole process, of what a process has only one of: torch's CPU
// allocator, the operator interceptor's switch, the fault handler and the fork handlers. The
// only global state of Bottomless; never destroyed, because tensors may be freed until the very
// end of the process.
// Thread-safety: every member from any thread.
#pragma once
#include <bottomless/torch.h>

#include <atomic>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "os/fault_handler.h"
#include "torch/runtime/session.h"

namespace bottomless {

class Process {
 public:
  static Process& get();

  // Starts managing new storages. One session is current at a time.
  Result<Session*> open(const Options& options);
  // Stops managing new storages; those of the session stay managed until they are freed.
  void close(Session* session);

  // The sessions; in a forked child none is current.
  SessionTable& sessions() { return sessions_; }
  // True while any storage may be managed: operators must pin.
  bool active() const { return sessions_.count() > 0; }
  // Makes the range accessible in a forked child, where nothing is pinned.
  void touch_in_child(Session& session, const void* address, Bytes bytes, Access access);
  // The session that manages the storage at `address`, or null.
  Session* owner_of(const void* address) const { return sessions_.owner_of(address); }
  bool in_forked_child() const { return forked_child_.load(std::memory_order_relaxed); }

 private:
  Process() = default;
  Result<void> install() BOTTOMLESS_REQUIRES(mutex_);
  static bool owns_in_handler(const void* address);
  static std::optional<bool> serve_in_handler(const void* address, Access access);
  static FaultHandler::Origin origin_in_handler();
  Result<bool> serve(const void* address, Access access, const FaultHandler::Origin& origin);
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  Mutex mutex_;
  bool installed_ BOTTOMLESS_GUARDED_BY(mutex_) = false;
  FaultHandler fault_handler_ BOTTOMLESS_GUARDED_BY(mutex_);
  // While the process is being forked, and in the child for good: see Engine::after_fork_in_parent.
  struct Fork {
    Session* session;
    UniqueFd parents_end;
    UniqueFd childs_end;
  };
  std::vector<Fork> forking_ BOTTOMLESS_GUARDED_BY(mutex_);

  SessionTable sessions_;  // changed under mutex_, asked without
  std::atomic<bool> forked_child_{
      false};  // set before the child runs any other code: no order needed
};

}  // namespace bottomless
