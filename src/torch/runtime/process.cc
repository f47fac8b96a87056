#include "torch/runtime/process.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <fcntl.h>
#include <pthread.h>
#include <torch/library.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "torch/intercept/allocator.h"
#include "torch/intercept/deferred.h"
#include "torch/intercept/interceptor.h"
#include "torch/runtime/compute_alone.h"
#include "torch/runtime/covered_calls.h"

namespace bottomless {

Process& Process::get() {
  static Process* const process = new Process;  // NOLINT: never destroyed, see the header
  return *process;
}

bool Process::owns_in_handler(const void* address) {
  return Process::get().owner_of(address) != nullptr;
}

// In signal context. A forked child has a copy of the records but no threads: its handler does the
// work itself.
std::optional<bool> Process::serve_in_handler(const void* address, Access access) {
  Process& process = Process::get();
  if (!process.in_forked_child()) return std::nullopt;
  if (process.owner_of(address)->engine().touch_in_child(address, access)) return true;
  constexpr std::string_view kWhy =
      "bottomless: a forked process could not read a tensor that was on disk when it was forked\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kWhy.data(), kWhy.size());
  return false;
}

// In signal context.
FaultHandler::Origin Process::origin_in_handler() {
  return {OperatorScope::current(), at::in_parallel_region()};
}

Result<bool> Process::serve(const void* address, Access access,
                            const FaultHandler::Origin& origin) {
  Session* session = owner_of(address);
  if (session == nullptr) return false;
  Accessor accessor;
  if (origin.operation != nullptr) {
    const auto& scope = *static_cast<const OperatorScope*>(origin.operation);
    accessor.inside = scope.name();
    accessor.holding = scope.holding(session->engine());
  } else if (origin.in_parallel_region) {
    accessor.inside = OperatorScope::latest();
    accessor.helps = true;
  }
  return session->engine().touch(address, access, accessor);
}

void Process::touch_in_child(Session& session, const void* address, Bytes bytes, Access access) {
  // Whatever a block's size: at most as many calls as there are granules, each of them short.
  for (Bytes done = 0; done < bytes; done += Heap::kGranule) {
    session.engine().touch_in_child(static_cast<const std::byte*>(address) + done, access);
  }
  if (bytes > 0) {
    session.engine().touch_in_child(static_cast<const std::byte*>(address) + bytes - 1, access);
  }
}

void Process::before_fork() BOTTOMLESS_NOT_ANALYSED {
  mutex_.lock();
  if (in_forked_child()) return;  // a child's own child has all that it has
  sessions_.each([this](Session& session) BOTTOMLESS_NOT_ANALYSED {
    int ends[2] = {-1, -1};
    // Without a pipe the parent cannot tell when the child ends, and keeps its extents for good.
    if (pipe2(ends, O_CLOEXEC) != 0) ends[0] = ends[1] = -1;
    forking_.push_back({&session, UniqueFd(ends[0]), UniqueFd(ends[1])});
    session.engine().before_fork();
  });
}

void Process::after_fork_in_parent() BOTTOMLESS_NOT_ANALYSED {
  if (!in_forked_child()) {
    for (Fork& fork : forking_)
      fork.session->engine().after_fork_in_parent(std::move(fork.parents_end));
    forking_.clear();
  }
  mutex_.unlock();
}

void Process::after_fork_in_child() BOTTOMLESS_NOT_ANALYSED {
  if (!in_forked_child()) {
    forked_child_.store(true, std::memory_order_relaxed);
    sessions_.clear_current();
    for (Fork& fork : forking_) {
      const UniqueFd closed = std::move(fork.parents_end);
      fork.session->engine().after_fork_in_child();
    }
  }
  mutex_.unlock();
}

Result<void> Process::install() {
  if (installed_) return {};
  Result<void> started = fault_handler_.start(
      {.owns = &owns_in_handler,
       .serve_here = &serve_in_handler,
       .origin_here = &origin_in_handler,
       .serve = [this](
                    const void* address, Access access,
                    const FaultHandler::Origin& origin) { return serve(address, access, origin); },
       .prepare = &compute_alone});
  if (!started.ok()) return started;
  pthread_atfork([] { Process::get().before_fork(); },
                 [] { Process::get().after_fork_in_parent(); },
                 [] { Process::get().after_fork_in_child(); });
  cover_calls_on_tensors();
  installed_ = true;
  return {};
}

Result<Session*> Process::open(const Options& options) {
  MutexLock lock(mutex_);
  if (in_forked_child()) {
    return Error{Code::invalid_argument,
                 "set a memory limit: this process was forked from one under a limit; start it "
                 "with spawn or forkserver instead (multiprocessing.set_start_method)"};
  }
  if (sessions_.has_current()) {
    return Error{Code::invalid_argument,
                 "set a memory limit: one is already in force; end it first (close the runtime or "
                 "leave its context)"};
  }
  if (Result<void> ready = install(); !ready.ok()) return std::move(ready).error();
  sessions_.retire();
  if (sessions_.count() == SessionTable::kMost) {
    return Error{Code::invalid_argument,
                 "set a memory limit: " + std::to_string(SessionTable::kMost) +
                     " earlier ones still have living tensors; free some first"};
  }
  Result<std::unique_ptr<Session>> session = Session::open(options);
  if (!session.ok()) return std::move(session).error();
  Session* opened = sessions_.publish(std::move(session).value());
  sessions_.set_current(opened);
  install_allocator();
  intercept_on_this_thread();
  return opened;
}

void Process::close(Session* session) {
  if (!sessions_.is_current(session)) return;
  // From here on nothing is deferred any more, and what was has run: tensors may outlive the limit.
  session->engine().drop_unseen_deferred();
  if (Result<void> settled = session->engine().flush_deferred(); !settled.ok())
    std::fprintf(stderr, "bottomless: end a limit: %s; what could not be updated is once it can\n",
                 settled.error().message.c_str());
  MutexLock lock(mutex_);
  sessions_.clear_current();
  remove_allocator();
  sessions_.retire();
}

}  // namespace bottomless
